"""What is measured in an engine's own process: the work of each cell, its figure, and the least
time it could take."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from attrs import frozen
from machine import Speed
from models import Shape

_LOWEST, _HIGHEST = 300, 8_000
"""Prompt ids: in every vocabulary, and no end token."""


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

    def prompts(self, round_: int) -> list[list[int]]:
        """Others in every round, so that no cache of prefixes helps; the same for every engine."""
        draw = random.Random(f"{self.num_prompts} {self.prompt_len} {round_}")
        lengths = [draw.randint(*self.prompt_len) for _ in range(self.num_prompts)]
        return [[draw.randrange(_LOWEST, _HIGHEST) for _ in range(length)] for length in lengths]

    def tokens(self, prompts: Sequence[Sequence[int]]) -> int:
        """The tokens that count."""
        if self.new_tokens == 1:
            return sum(map(len, prompts))
        return len(prompts) * (self.new_tokens - self.decode_only)

    def floor(
        self, prompts: Sequence[Sequence[int]], shape: Shape, weight_bytes: int, speed: Speed
    ) -> float:
        """Seconds that the weights alone ask for: each step reads their bytes once, those of the
        experts in use where there are any, and multiplies each token by them. Attention and
        everything small is free."""
        count = len(prompts)
        reading = weight_bytes / (speed.gigabytes * 1e9)

        def step(num_tokens: int) -> float:
            products = 2 * (num_tokens * shape.layer_weights + count * shape.head_weights)
            return max(reading * shape.read_share(num_tokens), products / (speed.gigaflops * 1e9))

        steps = (self.new_tokens - 1) * step(count)
        return steps if self.decode_only else steps + step(sum(map(len, prompts)))


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
    }
