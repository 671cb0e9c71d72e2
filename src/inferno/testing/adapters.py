"""Adapters beside a model equal models that they are merged into.

Suffixes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import attrs
import pytest
import torch
from attrs import frozen
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.catalog import Catalog
from inferno.catalog.offers import Offer
from inferno.contracts import AdapterFormat, LowRank, RowRange, RowsView
from inferno.nn.lora import StepSlots
from inferno.ops.reference import TORCH
from inferno.plan import AdapterRoom, AdapterTarget, Options, open_model
from inferno.request.requests import AdapterRef
from inferno.testing.alike import alike
from inferno.testing.tiny import Toy, assert_close, generate, load_toy
from inferno.weights.adapters import Adapters, attach
from inferno.weights.dtypes import dtype_of

RANKS = (4, 7)
"""Of the adapters."""
EIGHT = (1, 2, 3, 4, 5, 6, 7, 8)
SLOTS, MOST = 3, 8
SCALE = 0.5


@frozen(eq=False)
class MemoryAdapter:
    """An adapter that is no file."""

    ref: AdapterRef
    pairs: Mapping[str, tuple[Tensor, Tensor]]

    @classmethod
    def random(cls, number: int, tensors: Mapping[str, Tensor], rank: int) -> MemoryAdapter:
        """Return one for these matrices, whose product is about as large as they."""
        draw, pairs = torch.Generator().manual_seed(number), {}
        for path, weight_OI in sorted(tensors.items()):
            outputs, inputs = weight_OI.shape
            a_RI = torch.randn(rank, inputs, generator=draw)
            size = float(weight_OI.float().std()) / SCALE / rank**0.5
            pairs[path] = a_RI, torch.randn(outputs, rank, generator=draw) * size
        digest = f"{number:032x}"
        return cls(AdapterRef(f"number {number}", digest, digest, "memory"), pairs)

    @property
    def headers(self) -> Mapping[str, LowRank]:
        return {
            path: LowRank(rank=len(a), scale=SCALE, inputs=a.shape[1], outputs=len(b))
            for path, (a, b) in self.pairs.items()
        }

    def merged(
        self, tensors: Mapping[str, Tensor], ranges: Mapping[str, RowRange]
    ) -> dict[str, Tensor]:
        """Return a checkpoint's tensors with the adapter in them. `ranges` are the model's tensors
        within those that are stored."""
        changed = {name: each.clone() for name, each in tensors.items()}
        for path, (a, b) in self.pairs.items():
            rows = ranges[f"{path}.weight"]
            weight = rows.of(changed[rows.stored])
            weight.copy_(weight.float() + SCALE * b @ a)
        return changed


def with_adapters(
    toy: Toy,
    given: list[MemoryAdapter],
    beside: tuple[AdapterTarget, ...] = get_args(AdapterTarget),
) -> Toy:
    """Put room beside a toy's matrices, and read these adapters. `Toy.engine` computes them."""
    by_digest = {each.ref.digest: each for each in given}
    step, dtype = StepSlots.of(toy.plan.max_num_batched_tokens), dtype_of(toy.plan)
    room = AdapterRoom(slots=max(SLOTS, len(given) + 1), rank=MOST, beside=beside)
    places = attach(toy.model, step, room, TORCH, dtype)
    plan = attrs.evolve(toy.plan, adapters=room)
    adapters = Adapters(
        step,
        places,
        MOST,
        dtype,
        lambda ref: (
            ref.digest,
            by_digest[ref.digest].headers,
            lambda: by_digest[ref.digest].pairs,
        ),
    )
    for each in given:
        adapters.read(each.ref)
    return Toy(plan, toy.model, adapters)


def ranges_of(checkpoint: Path, catalog: Catalog) -> Mapping[str, RowRange]:
    """Return where the model's tensors are in those that are stored, as its plugin reads them."""
    with open_model(str(checkpoint), Options(dtype="float32"), catalog) as opened:
        view = opened.checkpoint
        if isinstance(view, RowsView):
            return view.ranges
        return {name: RowRange(name) for name in view.tensors}


@frozen
class MemoryFile:
    """An adapter as its format opens it (`contracts.AdapterFile`)."""

    adapter: MemoryAdapter

    @property
    def digest(self) -> str:
        return self.adapter.ref.digest

    @property
    def pairs(self) -> Mapping[str, LowRank]:
        return self.adapter.headers

    def read(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        return self.adapter.pairs


def serving(catalog: Catalog, given: Sequence[MemoryAdapter]) -> Catalog:
    """Return the catalog with the format of these adapters."""
    by_path = {each.ref.path: MemoryFile(each) for each in given}
    hook, item = (
        "inferno_adapter_formats",
        AdapterFormat(
            name="memory",
            matches=lambda path: str(path) in by_path,
            open=lambda path, base: by_path[str(path)],
        ),
    )
    offers = (*catalog.offers.get(hook, ()), Offer(item, "inferno"))
    return attrs.evolve(catalog, offers={**catalog.offers, hook: offers})


def stored_matrices(checkpoint: Path, catalog: Catalog, block_size: int) -> dict[str, Tensor]:
    """Return the matrices beside which adapters can be, by path: those that are stored by
    themselves."""
    adapted = with_adapters(load_toy(checkpoint, catalog, block_size=block_size), [])
    tensors = load_file(checkpoint / "model.safetensors")
    ranges = ranges_of(checkpoint, catalog)
    assert adapted.adapters is not None
    return {
        path: rows.of(tensors[rows.stored])
        for path in adapted.adapters.places
        if (rows := ranges.get(f"{path}.weight")) is not None and rows.stored in tensors
    }


class AdapterTests:
    """Part of `ArchitectureTests`."""

    @alike
    @pytest.mark.parametrize(
        "ranks",
        [pytest.param(RANKS, id="two"), pytest.param(EIGHT, id="eight", marks=pytest.mark.slow)],
    )
    def test_adapters_in_one_batch_equal_merged_models(
        self,
        ranks: Sequence[int],
        toy: Toy,
        checkpoint: Path,
        catalog: Catalog,
        prompts: list[list[int]],
        tmp_path: Path,
    ) -> None:
        """Each row as if alone, those without an adapter bit by bit as without room for any; from
        the prefix cache too, and captured where steps are."""
        file = checkpoint / "model.safetensors"
        if not file.is_file():
            pytest.skip("the checkpoint has several files")
        tensors, ranges = load_file(file), ranges_of(checkpoint, catalog)
        matrices = stored_matrices(checkpoint, catalog, toy.plan.block_size)
        if not matrices:
            pytest.skip("no linear layer is stored by itself")
        given = [MemoryAdapter.random(i, matrices, rank) for i, rank in enumerate(ranks, 1)]
        adapted = with_adapters(load_toy(checkpoint, catalog), given)
        prompt, refs = prompts[-1], [None, *(each.ref for each in given)]
        size, count = toy.plan.vocab_size, len(refs)
        others = [[(token + i) % size for token in prompt] for i in range(1, count)]
        expected = generate(toy, [prompt, *others], 8)[:1]
        for number, each in enumerate(given):
            folder = tmp_path / str(number)
            shutil.copytree(checkpoint, folder)
            save_file(each.merged(tensors, ranges), folder / "model.safetensors", {"format": "pt"})
            expected += generate(load_toy(folder, catalog), [prompt], 8)
        plain_V, *changed = [each.logits_NV[0] for each in expected]
        for logits_V in changed:
            assert float((logits_V - plain_V).std()) > 0.03 * float(plain_V.std())
        engine = adapted.engine()
        for known in (False, True):
            outcomes = generate(adapted, [prompt] * count, 8, engine=engine, adapters=refs)
            for ours, theirs in zip(outcomes, expected, strict=True):
                assert ours.token_ids == theirs.token_ids
                # Adapters are as large as the matrices, and their sums may cancel.
                assert_close(ours.logits_NV, theirs.logits_NV, 5e-4)
                assert (ours.num_cached > 0) == known
            # With routed experts, who shares an expert with others depends on these.
            if not known and not getattr(self, "rerouted", False):
                assert torch.equal(outcomes[0].logits_NV, expected[0].logits_NV)
