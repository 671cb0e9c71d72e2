"""Requests of many lengths at once: nano-vllm's workload, of `inferno bench --ragged`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

RAGGED_REQUESTS = 256
_SHORTEST, _LONGEST = 100, 1024


@frozen
class Load:
    """Requests of a workload."""

    prompts: Sequence[Sequence[int]]
    output_lens: Sequence[int]
    params: SamplingParams = SamplingParams(temperature=0.6, ignore_eos=True)

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(self.output_lens)

    def requests(self) -> Iterator[Request]:
        for i, (prompt, length) in enumerate(zip(self.prompts, self.output_lens, strict=True)):
            params = evolve(self.params, max_tokens=length)
            yield Request(id=str(i), token_ids=tuple(prompt), params=params)


def ragged_load(count: int = RAGGED_REQUESTS, scale: int = 1, vocab_size: int = 10_001) -> Load:
    """Return the workload of nano-vllm's bench.py: prompts and outputs of 100 to 1024 tokens, drawn
    with seed 0 in its order. `scale` divides the lengths."""
    draw = random.Random(0)
    prompts = [
        [draw.randint(0, 10_000) % vocab_size for _ in range(draw.randint(_SHORTEST, _LONGEST))]
        for _ in range(count)
    ]
    lengths = [draw.randint(_SHORTEST, _LONGEST) for _ in range(count)]
    return Load(
        [prompt[: max(1, len(prompt) // scale)] for prompt in prompts],
        [max(2, length // scale) for length in lengths],
    )
