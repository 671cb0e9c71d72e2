"""`--batch-invariant`: the same bits alone, in a batch, in chunks, after a prefix hit, with one
thread and two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from inferno.catalog import Catalog
from inferno.errors import UnsupportedError
from inferno.plan import Plan
from inferno.testing.alike import alike
from inferno.testing.tiny import (
    DEVICE,
    Outcome,
    Toy,
    generate,
    load_toy,
    plan_of,
    ragged_prompts,
    same_bits,
)

TOKENS = 6


class BatchInvariantTests:
    """Part of `ArchitectureTests`. A plan that refuses it names what is
    not the same in every batch; any other keeps what it promises."""

    @alike
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.slow
    def test_batch_invariant_means_the_same_bits(
        self, dtype: str, checkpoint: Path, catalog: Catalog
    ) -> None:
        plain = plan_of(checkpoint, catalog, dtype=dtype)
        try:
            two = self._load(checkpoint, catalog, dtype, threads=2)
        except UnsupportedError as error:
            causes = list(_causes(plain, catalog))
            assert any(cause in error.cause for cause in causes), f"{error}; causes: {causes}"
            assert "--batch-invariant" in error.remedy
            return
        assert two.plan.batch_invariant
        assert all(use.need.batch_invariant for use in two.plan.attention)
        prompts = ragged_prompts(two.plan.vocab_size)
        with_two_threads = generate(two, prompts, TOKENS)
        toy = self._load(checkpoint, catalog, dtype, threads=1)  # and so for later tests
        alone = [generate(toy, [prompt], TOKENS)[0] for prompt in prompts]
        assert same_bits(with_two_threads, alone), "with two threads: other bits than with one"
        for what, again in _histories(toy, prompts):
            assert same_bits(again, alone), f"{what}: other bits than alone"

    def _load(self, checkpoint: Path, catalog: Catalog, dtype: str, threads: int) -> Toy:
        return load_toy(checkpoint, catalog, dtype=dtype, batch_invariant=True, threads=threads)


def _causes(plain: Plan, catalog: Catalog) -> Iterator[str]:
    """Words of every cause that a plan without the option has for a refusal with it."""
    if DEVICE != "cpu":
        yield "nothing promises the same bits"
    if plain.states:
        yield "recurrent states"
    if catalog.architecture(plain.architecture).item.varies is not None:
        yield "is not the same bits in every batch"
    if "torch" in plain.products.values():
        yield "torch multiplies"


def _histories(toy: Toy, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[str, list[Outcome]]]:
    yield "in a batch", generate(toy, prompts, TOKENS)
    for size in (7, 33):
        chunked = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=size), toy.model)
        yield f"in chunks of {size}", generate(chunked, prompts, TOKENS)
    engine = toy.engine()
    generate(toy, prompts, engine=engine)
    hits = generate(toy, prompts, TOKENS, engine=engine)
    assert hits[-1].num_cached > 0
    yield "after a prefix hit", hits
