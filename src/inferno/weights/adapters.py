"""The adapters of a loaded model: read to the host's memory, and written to slots beside the
matrices.

Suffixes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from threading import Lock

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from inferno.contracts import AdapterBase, AdapterFormat, LowRank
from inferno.errors import CheckpointError, RequestError
from inferno.nn import (
    Embedding,
    Experts,
    Linear,
    LMHead,
    MediaEncoder,
    MergedLinear,
    TiedLMHead,
    Weight,
)
from inferno.nn.cut import Share
from inferno.nn.grouped import GroupedLinear
from inferno.nn.lora import Adapted, Pairs, Place, StepSlots
from inferno.ops.reference import Ops
from inferno.plan import (
    MERGE_ADAPTER,
    AdapterPlaces,
    AdapterRoom,
    Opened,
    names_in_model,
)
from inferno.request.requests import AdapterRef
from inferno.weights.dtypes import dtype_of
from inferno.weights.pairing import checkpoint_path, join

_Values = Mapping[str, tuple[Tensor, Tensor]]
"""By place, A (rank, inputs) and B.T (rank, outputs) with the scale in it."""


class Places(dict[str, Place]):
    """The places of adapters, by module path in the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.without: set[str] = set()
        """Paths of matrices beside which there could be room."""
        self.elsewhere: dict[str, tuple[int, int]] = {}
        """Outputs and inputs of matrices that other ranks have."""

    @property
    def told(self) -> AdapterPlaces:
        """What other pipeline stages are told of them."""
        shapes = {path: place.shape for path, place in self.items()}
        return AdapterPlaces({**self.elsewhere, **shapes}, tuple(sorted(self.without)))

    def add(self, others: AdapterPlaces) -> None:
        """Add the places of another pipeline stage."""
        self.elsewhere |= others.shapes
        self.without.update(others.without)

    def shape(self, path: str) -> tuple[int, int] | None:
        """Return the outputs and inputs of a whole matrix; None if no rank has a place for it."""
        place = self.get(path)
        return self.elsewhere.get(path) if place is None else place.shape


@frozen(eq=False)
class KeptAdapters:
    """What does not depend on the memory that a model is loaded into."""

    read: Mapping[str, _Values]
    """The adapters that were read, by digest."""
    places: AdapterPlaces


@define(eq=False)
class Adapters:
    """Reads adapters, in any thread, and writes them into slots."""

    step: StepSlots
    places: Places
    rank: int
    """The most that a slot holds."""
    dtype: torch.dtype
    open: Callable[[AdapterRef], tuple[str, Mapping[str, LowRank], Callable[[], _Values]]]
    """Returns an adapter's digest, its pairs and what reads them."""
    loaded: Sequence[AdapterRef] = ()
    """Those that callers may name from the start."""
    checked: bool = False
    """Whether another rank has checked what is read, which knows the matrices of all pipeline
    stages."""
    _read: dict[str, _Values] = field(factory=dict)
    """By digest."""
    _slots: dict[int, str] = field(factory=dict)
    """The digest of what is in a slot."""
    _written: dict[int, Collection[str]] = field(factory=dict)
    """The places where a slot is not zero."""
    _lock: Lock = field(factory=Lock)

    @classmethod
    def of(cls, opened: Opened, model: nn.Module, ops: Ops) -> Adapters | None:
        """Put room for adapters beside the matrices of a finalized model, and read those of the
        plan, unless other pipeline stages have still to say what they have (`meet`); None if it has
        no slots. Raises CheckpointError, UnsupportedError."""
        plan = opened.plan
        if (room := plan.adapters) is None:
            return None
        base = AdapterBase(architecture=opened.parts.architecture, config=plan.config)
        catalog = opened.parts.catalog

        def open(ref: AdapterRef) -> tuple[str, Mapping[str, LowRank], Callable[[], _Values]]:
            file = catalog.named(AdapterFormat, ref.format).item.open(Path(ref.path), base)
            return file.digest, file.pairs, file.read

        most = max(plan.max_num_batched_tokens, plan.max_num_seqs)
        step = StepSlots.of(most, plan.device.torch_name)
        places = attach(model, step, room, ops, dtype_of(plan))
        staged = plan.ranks is not None and plan.ranks.stages > 1
        checked = staged and opened.rank > 0
        loaded = [use.adapter for use in room.loaded]
        adapters = cls(step, places, room.rank, dtype_of(plan), open, loaded, checked)
        if checked or not staged:
            adapters.meet(())
        return adapters

    def meet(self, others: Iterable[AdapterPlaces]) -> None:
        """Learn what other pipeline stages have, and read the plan's adapters. Raises as `read`."""
        for each in others:
            self.places.add(each)
        for ref in self.loaded:
            self.read(ref)

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
            places = {path: self._place(ref.name, path, pair) for path, pair in pairs.items()}
            located = {path: place for path, place in places.items() if place is not None}
            values = read()
            self._read[ref.digest] = {
                located[path]: self._values(ref.name, path, located[path], pair, *values[path])
                for path, pair in pairs.items()
                if located.get(path) in self.places
            }

    @property
    def kept(self) -> KeptAdapters:
        """What is kept while the model is loaded again."""
        return KeptAdapters(self._read, self.places.told)

    def adopt(self, before: KeptAdapters) -> None:
        """Have what was kept of the same model."""
        self._read = {**before.read, **self._read}
        self.places.add(before.places)

    def keep(self, digests: Collection[str]) -> None:
        """Forget all adapters but these and those in slots."""
        needed = {*digests, *self._slots.values()}
        with self._lock:
            self._read = {digest: each for digest, each in self._read.items() if digest in needed}

    def write(self, slot: int, digest: str) -> None:
        """Write an adapter that was read into a slot, if it is not there."""
        if self._slots.get(slot) == digest:
            return
        values = self._read[digest]
        for path in self._written.get(slot, ()):
            if path not in values:
                self.places[path].write(slot, None)
        for path, pair in values.items():
            self.places[path].write(slot, pair)
        self._slots[slot], self._written[slot] = digest, [*values]

    def _place(self, name: str, path: str, pair: LowRank) -> str | None:
        """Return the place of a pair, whose module may have the prefix of a model with images; None
        if another pipeline stage has it."""
        names = names_in_model(path)
        where = next((each for each in names if self.places.shape(each) is not None), None)
        if where is None and self.checked:
            return None
        if where is None and any(each in self.places.without for each in names):
            raise CheckpointError(
                f"the adapter {name!r} changes {path[:100]}, beside which there is no room",
                "Start with --lora-targets all, or with --lora NAME=REF for this adapter.",
            )
        if where is None:
            raise CheckpointError(
                f"the adapter {name!r} changes {path[:100]}, beside which this model can "
                "compute no adapter: it has no such matrix, or no layer multiplies by it as it is",
                MERGE_ADAPTER,
            )
        shape = self.places.shape(where)
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
        self, name: str, path: str, place: str, pair: LowRank, a_RI: Tensor, b_OR: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what this rank has of a pair: A and B.T, with the scale in it."""
        a_RI, b_RO = a_RI.to(self.dtype), (b_OR.T.float() * pair.scale).to(self.dtype)
        if not (bool(a_RI.isfinite().all()) and bool(b_RO.isfinite().all())):
            raise CheckpointError(
                f"the adapter {name!r} has numbers for {path[:100]} that are not finite",
                "It is damaged: train or save it again.",
            )
        if (share := self.places[place].share) is not None:
            a_RI, b_RO = share.of_pair(a_RI, b_RO)
        return a_RI.contiguous(), b_RO.contiguous()


def attach(
    model: nn.Module, step: StepSlots, room: AdapterRoom, ops: Ops, dtype: torch.dtype
) -> Places:
    """Put room for adapters beside the matrices of a finalized model. Matrices that a layer absorbs
    into others have none."""
    return _Attaching(step, room, ops, step.slots_T.new_empty(0, dtype=dtype)).run(model)


@frozen(eq=False)
class _Attaching:
    step: StepSlots
    room: AdapterRoom
    ops: Ops
    like: Tensor
    places: Places = field(factory=Places)

    def run(self, model: nn.Module) -> Places:
        seeing = {m for e in model.modules() if isinstance(e, MediaEncoder) for m in e.modules()}
        modules = [(path, each) for path, each in model.named_modules() if each not in seeing]
        score = getattr(model, "score", None)
        tied = {id(each.embedding) for _, each in modules if isinstance(each, TiedLMHead)}
        for path, module in modules:
            if isinstance(module, Experts):
                self._experts(path, module)
            elif type(module) is Embedding:
                self._vocabulary(path, module, logits=id(module) in tied)
            elif isinstance(module, LMHead) and module is not score:
                self._vocabulary(path, module, logits=True)
            elif isinstance(module, MergedLinear) and module.merged is not None:
                module.merged = self._beside(module.merged, module.sizes)
                parent = path.rpartition(".")[0]
                self._place(parent, module.names, module.merged.pairs, module.shares)
            elif isinstance(module, Linear) and module.quantizable:
                sizes, sampled = [module.weight.shape[0]], module.sampled
                module.weight = self._beside(module.weight, sizes, sampled=sampled)
                self._place("", [checkpoint_path(path)], module.weight.pairs, [module.share])
        return self.places

    def _beside(
        self,
        inner: Weight,
        sizes: Sequence[int],
        *,
        logits: bool = False,
        sampled: bool = False,
    ) -> Adapted:
        room = self.room.slots, self.room.rank, self.ops, self.like
        return Adapted(inner, Pairs(sizes, inner.shape[1], *room, logits), self.step, sampled)

    def _place(
        self, parent: str, names: Iterable[str], pairs: Pairs, shares: Sequence[Share | None]
    ) -> None:
        for part, (name, share) in enumerate(zip(names, shares, strict=True)):
            place = Place(pairs, part, share=share)
            self.places[join(parent, name) if parent else name] = place

    def _vocabulary(self, path: str, module: Embedding | LMHead, *, logits: bool) -> None:
        """Of an embedding with `logits`, a head uses the matrix too."""
        if "vocabulary" not in self.room.beside:
            self.places.without.add(path)
            return
        sizes = [module.weight.shape[0]]
        module.weight = self._beside(module.weight, sizes, logits=logits)
        self._place("", [path], module.weight.pairs, [module.share])

    def _experts(self, path: str, module: Experts) -> None:
        wanted = "experts" in self.room.beside
        grouped = [(g, each) for g in module.groups for each in g.modules()]
        for group, linear in grouped:
            if not isinstance(linear, GroupedLinear):
                continue
            every, count = range(module.num_experts), len(group.own)
            if not wanted:
                names = product(every, linear.names)
                self.places.without.update(f"{path}.{expert}.{name}" for expert, name in names)
                continue
            linear.pairs = pairs = self._grouped(linear, count)
            for expert, (part, name) in product(every, enumerate(linear.names)):
                where, local = f"{path}.{expert}.{name}", expert - group.own.start
                place = Place(pairs, part, local, count, linear.shares[part])
                if expert in group.own:
                    self.places[where] = place
                elif expert not in module.own:
                    self.places.elsewhere[where] = place.shape
        for group in module.groups:
            group.slots = self.step if wanted else None

    def _grouped(self, linear: GroupedLinear, count: int) -> Pairs:
        outputs, inputs = linear.weight.shape
        size = outputs // count // len(linear.names)
        slots = self.room.slots * count
        sizes = [size] * len(linear.names)
        return Pairs(sizes, inputs, slots, self.room.rank, self.ops, self.like)
