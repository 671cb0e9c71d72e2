"""What is measured in an engine's own process: the work of each cell, its figure, and the least
time it could take."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from attrs import frozen
from machine import Speed
from models import Shape

COLD, FIRST, PEAK = "cold-start", "first-start", "peak"
"""Starts that count, the one before them, and the memory at the end: cells without prompts."""
HOST = "host-cost"
"""The cell of the engine's own bookkeeping, in ms per step of 256 sequences. Also its format: it
has none."""
_LOWEST, _HIGHEST = 300, 8_000
"""Prompt ids: in every vocabulary, and no end token."""
PLAIN_LEN = 2304
"""The context that engines are started with, in tokens, unless a cell needs more."""
AFTER = {f"decode-{length}k": length for length in (2, 4, 16, 64)}
"""By cell: the length of the prompt before the measured decoding, in units of 1 024 tokens."""
LONG = ("decode-16k", "decode-64k")
"""Cells whose prompt alone takes minutes: measured only if they are asked for."""


@frozen(kw_only=True)
class Cell:
    """Some prompts at once, each continued by `new_tokens` greedy tokens."""

    meaning: str
    num_prompts: int = 1
    prompt_len: tuple[int, int]
    """Shortest and longest, in tokens."""
    new_tokens: int
    decode_only: bool = False
    """Count the tokens after the first, and the time after it."""
    kept: int = 0
    """Tokens that every prompt begins with, the same in each round: engines keep them in their
    cache. They come before those of `prompt_len`."""

    @property
    def is_hit(self) -> bool:
        """Whether the figure is the seconds to the first token after a prefix hit."""
        return self.kept > 0 and self.new_tokens == 1

    @property
    def max_model_len(self) -> int:
        """The context that engines are started with, in tokens."""
        needed = self.kept + self.prompt_len[1] + self.new_tokens
        return PLAIN_LEN if needed <= PLAIN_LEN else -(-needed // 256) * 256

    def prompts(self, round_: int) -> list[list[int]]:
        """Others in every round, so that no cache of prefixes helps, except with what is kept; the
        same for every engine."""
        prefix = _tokens(random.Random(f"{self.kept} kept"), self.kept)
        draw = random.Random(f"{self.num_prompts} {self.prompt_len} {round_}")
        lengths = [draw.randint(*self.prompt_len) for _ in range(self.num_prompts)]
        return [prefix + _tokens(draw, length) for length in lengths]

    def value(self, prompts: Sequence[Sequence[int]], first: float, total: float) -> float:
        """The cell's figure: tokens per second, or the seconds to the first one after a hit."""
        if self.is_hit:
            return total
        seconds = total - first * self.decode_only
        if self.new_tokens == 1:
            return sum(map(len, prompts)) / seconds
        return len(prompts) * (self.new_tokens - self.decode_only) / seconds

    def floor(
        self, prompts: Sequence[Sequence[int]], shape: Shape, weight_bytes: int, speed: Speed
    ) -> float:
        """Seconds that the weights alone ask for: each step reads their bytes once, those of the
        experts in use where there are any, and multiplies each token by them. A step also reads
        what is kept, in 16 bits. The rest of attention and everything small is free."""
        count = len(prompts)
        bandwidth = speed.gigabytes * 1e9
        reading = weight_bytes / bandwidth
        cache_time = count * self.kept * shape.cache_bytes / bandwidth

        def step(num_tokens: int) -> float:
            products = 2 * (num_tokens * shape.layer_weights + count * shape.head_weights)
            reads = reading * shape.read_share(num_tokens) + cache_time
            return max(reads, products / (speed.gigaflops * 1e9))

        steps = (self.new_tokens - 1) * step(count)
        fresh = sum(max(1, len(prompt) - self.kept) for prompt in prompts)
        return steps if self.decode_only else steps + step(fresh)


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(_LOWEST, _HIGHEST) for _ in range(count)]


def cells(*, quick: bool) -> Mapping[str, Cell]:
    new = 32 if quick else 128
    return {
        "decode": Cell(
            meaning="one stream, after its first token",
            prompt_len=(32, 32),
            new_tokens=new,
            decode_only=True,
        ),
        "prefill-512": Cell(meaning="a prompt of 512 tokens", prompt_len=(512, 512), new_tokens=1),
        "prefill-2048": Cell(
            meaning="a prompt of 2 048 tokens", prompt_len=(2048, 2048), new_tokens=1
        ),
        "batch-16": Cell(
            meaning=f"16 prompts of 32-128 tokens, {new} new each",
            num_prompts=16,
            prompt_len=(32, 128),
            new_tokens=new,
        ),
        "batch-64": Cell(
            meaning=f"64 prompts of 32-128 tokens, {new} new each",
            num_prompts=64,
            prompt_len=(32, 128),
            new_tokens=new,
        ),
        "prefix-hit": Cell(
            meaning="2 048 tokens that were seen before and 64 others",
            kept=2048,
            prompt_len=(64, 64),
            new_tokens=1,
        ),
        "prefix-full": Cell(
            meaning="2 048 tokens, all seen before", kept=2048, prompt_len=(0, 0), new_tokens=1
        ),
    } | {
        name: Cell(
            meaning=f"one stream after a prompt of {length} · 1 024 tokens",
            kept=length * 1024,
            prompt_len=(0, 0),
            new_tokens=32,
            decode_only=True,
        )
        for name, length in AFTER.items()
    }
