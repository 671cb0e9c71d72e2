"""The adapters of a loaded model: read to the host's memory, and written to slots beside the
matrices.

Suffixes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from threading import Lock

import torch
from attrs import define, field
from torch import Tensor, nn

from inferno.contracts import AdapterBase, AdapterFormat, LowRank
from inferno.errors import CheckpointError, RequestError
from inferno.nn import Linear, MergedLinear, Weight
from inferno.nn.lora import Adapted, Place, StepSlots
from inferno.ops.reference import Ops
from inferno.plan import MERGE_ADAPTER, Opened
from inferno.request.requests import AdapterRef
from inferno.weights.loading import dtype_of
from inferno.weights.pairing import checkpoint_path, join

_Values = Mapping[str, tuple[Tensor, Tensor]]
"""By place, A (rank, inputs) and B (outputs, rank) with the scale in it."""


@define(eq=False)
class Adapters:
    """Reads adapters, in any thread, and writes them into slots."""

    step: StepSlots
    places: Mapping[str, Place]
    rank: int
    """The most that a slot holds."""
    dtype: torch.dtype
    open: Callable[[AdapterRef], tuple[str, Mapping[str, LowRank], Callable[[], _Values]]]
    """Returns an adapter's digest, its pairs and what reads them."""
    _read: dict[str, _Values] = field(factory=dict)
    """By digest."""
    _slots: dict[int, str] = field(factory=dict)
    """The digest of what is in a slot."""
    _lock: Lock = field(factory=Lock)

    @classmethod
    def of(cls, opened: Opened, model: nn.Module, ops: Ops) -> Adapters | None:
        """Put room for adapters beside the matrices of a finalized model, and read those of the
        plan; None if it has no slots. Raises CheckpointError, UnsupportedError."""
        plan = opened.plan
        if (room := plan.adapters) is None:
            return None
        base = AdapterBase(architecture=opened.parts.architecture, config=plan.config)
        catalog = opened.parts.catalog

        def open(ref: AdapterRef) -> tuple[str, Mapping[str, LowRank], Callable[[], _Values]]:
            file = catalog.named(AdapterFormat, ref.format).item.open(Path(ref.path), base)
            return file.digest, file.pairs, file.read

        device, dtype = torch.device(plan.device.torch_name), dtype_of(plan)
        most = max(plan.max_num_batched_tokens, plan.max_num_seqs)
        step = StepSlots(torch.full((most,), -1, dtype=torch.int64, device=device))
        places = attach(model, step, room.slots, room.rank, ops, dtype)
        adapters = cls(step, places, room.rank, dtype, open)
        for use in room.loaded:
            adapters.read(use.adapter)
        return adapters

    def read(self, ref: AdapterRef) -> None:
        """Read and check an adapter, unless it is here. Raises CheckpointError, RequestError."""
        with self._lock:
            if ref.digest in self._read:
                return
            digest, pairs, read = self.open(ref)
            if digest != ref.digest:
                raise RequestError(
                    f"the files of the adapter {ref.name!r} have changed since it was loaded",
                    "Load it again.",
                    param="model",
                )
            found = {path: self._place(ref.name, path, pair) for path, pair in pairs.items()}
            values = read()
            self._read[ref.digest] = {
                found[path]: self._values(ref.name, path, pair, *values[path])
                for path, pair in pairs.items()
            }

    def keep(self, digests: Collection[str]) -> None:
        """Forget all adapters but these and those in slots."""
        kept = {*digests, *self._slots.values()}
        with self._lock:
            self._read = {digest: each for digest, each in self._read.items() if digest in kept}

    def write(self, slot: int, digest: str) -> None:
        """Write an adapter that was read into a slot, if it is not there."""
        if self._slots.get(slot) == digest:
            return
        values = self._read[digest]
        for path, place in self.places.items():
            place.weight.write(slot, place.part, values.get(path))
        self._slots[slot] = digest

    def _place(self, name: str, path: str, pair: LowRank) -> str:
        """Return the place of a pair, whose module may have the prefix of a model with images."""
        names = (path, path.replace("language_model.", "", 1), f"model.{path}")
        where = next((each for each in names if each in self.places), None)
        if where is None:
            raise CheckpointError(
                f"the adapter {name!r} changes {path[:100]}, beside which this model can "
                "compute no adapter: it is no linear layer that all tokens pass alone",
                MERGE_ADAPTER,
            )
        shape = self.places[where].shape
        if (pair.outputs, pair.inputs) != shape:
            raise CheckpointError(
                f"the adapter {name!r} has ({pair.outputs}, {pair.inputs}) for {path[:100]}, the "
                f"model {shape}",
                "It belongs to another model: serve it beside that one.",
            )
        if pair.rank > self.rank:
            raise CheckpointError(
                f"the adapter {name!r} has rank {pair.rank}, slots have {self.rank}",
                f"Start with --max-lora-rank {pair.rank}.",
            )
        return where

    def _values(
        self, name: str, path: str, pair: LowRank, a_RI: Tensor, b_OR: Tensor
    ) -> tuple[Tensor, Tensor]:
        a_RI, b_OR = a_RI.to(self.dtype), (b_OR.float() * pair.scale).to(self.dtype)
        if not (bool(a_RI.isfinite().all()) and bool(b_OR.isfinite().all())):
            raise CheckpointError(
                f"the adapter {name!r} has numbers for {path[:100]} that are not finite",
                "It is damaged: train or save it again.",
            )
        return a_RI, b_OR


def attach(
    model: nn.Module, step: StepSlots, slots: int, rank: int, ops: Ops, dtype: torch.dtype
) -> Mapping[str, Place]:
    """Put room for adapters beside the linear layers of a finalized model. Returns the places by
    module path in the checkpoint. Matrices that a layer absorbs, reads by rows or multiplies for
    some tokens only have none: heads, embeddings, routed experts."""
    places: dict[str, Place] = {}

    def adapted(inner: Weight, sizes: Sequence[int]) -> Adapted:
        device, width = step.slots_T.device, len(sizes) * rank
        down_SRI = torch.zeros(slots, width, inner.shape[1], dtype=dtype, device=device)
        return Adapted(inner, sizes, step, down_SRI, ops)

    for path, module in list(model.named_modules()):
        if isinstance(module, MergedLinear) and module.merged is not None:
            module.merged = weight = adapted(module.merged, module.sizes)
            parent = path.rpartition(".")[0]
            for part, name in enumerate(module.names):
                places[join(parent, name)] = Place(weight, part)
        elif isinstance(module, Linear) and module.quantizable:
            module.weight = weight = adapted(module.weight, [module.weight.shape[0]])
            places[checkpoint_path(path)] = Place(weight, 0)
    return places
