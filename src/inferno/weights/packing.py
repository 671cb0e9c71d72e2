"""A model's packed weights: read from the store if it has them, else collected and written to it.

Repacking weights for the kernels takes a part of every start, and quantizing them in situ takes
minutes. Both give the same bytes each time. Here they are kept by the content of the model's files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from inferno.contracts import GROUPED, LINEAR, Packing, Take
from inferno.plan import Opened, arrangement
from inferno.weights.packed import PackedFile, PackedStore, Part, Place
from inferno.weights.packed.digest import computed, remembered, state

if TYPE_CHECKING:
    from inferno.nn.weight import Weight

_DELAY = 3.0
"""Seconds after loading for which nothing is written: the first tokens come first."""
_MADE_OF = ("architecture", "format", "scheme", "in-situ scheme", "kernels")
"""The choices of a plan that decide what the packed bytes are."""

log = logging.getLogger("inferno.weights.packed")


@frozen
class _Own:
    """The parts of a file that one provider saved."""

    file: PackedFile
    places: Mapping[str, Place]

    def mapped(self, name: str) -> memoryview:
        return self.file.mapped(name)

    def read_into(self, name: str, to: memoryview, start: int = 0) -> None:
        self.file.read_into(name, to, start)


class _StopError(Exception):
    """Writing is to end."""


@define(eq=False)
class PackedWeights:
    """The packed weights of one model. `load` returns those that a file has; `keep` collects the
    others, and `begin_writing` writes them."""

    store: PackedStore
    packings: Mapping[str, Packing]
    """By kernel provider."""
    about: Mapping[str, Any]
    _key: Mapping[str, Any]
    """Of the store, without the hashes of the model's files."""
    _states: Mapping[Path, list[int]]
    _file: PackedFile | None = None
    _take: Mapping[str, Take] = field(factory=dict)
    _kept: dict[str, tuple[str, tuple[str, ...], Weight]] = field(factory=dict)
    _sources: frozenset[str] = frozenset()
    _stopped: threading.Event = field(factory=threading.Event)

    @classmethod
    def of(cls, opened: Opened) -> PackedWeights | None:
        """Return what the store has for an opened model. None if nothing is to be kept: the user
        wants none, or no provider can. Imports no torch."""
        plan = opened.plan
        if plan.packed_cache is None or opened.updated:  # the files do not have these weights
            return None
        files = tuple(getattr(opened.checkpoint, "files", ()))
        used = {use.name for use in plan.kernels if use.op in (LINEAR, GROUPED)}
        packings, versions = {}, {}
        for name in used:
            packing = opened.parts.kernels[name].packing
            if packing is not None and (version := packing.version()) is not None:
                packings[name], versions[name] = packing, version
        if not packings or not files:
            return None
        configs = [dict(opened.checkpoint.config), *arrangement(opened.checkpoint)]
        config = json.dumps(configs, sort_keys=True, default=str)
        key: dict[str, Any] = {
            "inferno": metadata.version("inferno"),
            "made of": sorted(
                [c.kind, c.name, c.distribution, c.version]
                for c in plan.chosen
                if c.kind in _MADE_OF
            ),
            "providers": versions,
            "kernels": sorted([use.op, use.layout, use.name] for use in plan.kernels),
            "config": hashlib.sha256(config.encode()).hexdigest(),
            "dtype": plan.dtype,
            "isq": None
            if plan.isq is None
            else [dict(plan.isq.modules), plan.isq.importance_sha256, plan.isq.requantized],
        }
        if (shard := opened.shard).ranks > 1:  # others have other parts of the same matrices
            key["shard"] = [shard.rank, shard.ranks, shard.unit, shard.attention, shard.experts]
            if shard.own_tokens:  # all but the experts is whole
                key["shard"].append(True)
        if plan.host_experts is not None:  # they are stacked apart
            key["on host"] = plan.host_experts.count
        if (span := opened.span) is not None:
            key["layers"] = [span.first, span.stop]
        try:
            states = {file: state(file) for file in files}
        except OSError:
            return None
        about = {
            "model": plan.ref,
            "path": plan.path,
            "isq": plan.isq and plan.isq.asked,
            "dtype": plan.dtype,
        }
        store = PackedStore(Path(plan.packed_cache), plan.packed_cache_limit)
        packed = cls(store, packings, about, key, states)
        packed._open()
        return packed

    def _open(self) -> None:
        hashes = remembered(list(self._states), self.store.folder)
        file = self.store.open({**self._key, "files": hashes}) if hashes is not None else None
        if file is not None:
            self._file = file
            parts = file.parts.values()
            self._sources = frozenset(s for place in parts for s in place.about["sources"])

    @property
    def found(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context in which weights are loaded, from before torch is imported: the providers of the
        file's parts read them. Closes the file."""
        if self._file is None:
            yield
            return
        with ExitStack() as stack:
            stack.callback(self._close)
            take: dict[str, Take] = {}
            for name, packing in self.packings.items():
                places = {
                    part: place
                    for part, place in self._file.parts.items()
                    if place.about["provider"] == name
                }
                if packing.read is not None and places:
                    take[name] = stack.enter_context(packing.read(_Own(self._file, places)))
                else:
                    take[name] = self._file.mapped
            self._take = take
            yield

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._take = {}

    def covers(self, path: str) -> bool:
        """Whether the matrix stored at that path of the checkpoint is in the file."""
        return path in self._sources

    def load(self, op: str, sources: Sequence[str]) -> tuple[str, Weight] | None:
        """Return the weight of the file for these stored matrices, by their paths, after its
        provider's name; None if it is not there or cannot be used."""
        name = _name_of(op, sources)
        if self._file is None or name not in self._file.parts or not self._take:
            return None
        about = self._file.parts[name].about
        provider = about["provider"]
        try:
            data = self._take[provider](name)
            return provider, _loaded(self.packings[provider], about["about"], data)
        except (OSError, ValueError, KeyError) as error:
            log.warning("packed weights of %s are not used: %s", name, error)
            return None

    def separate(self, op: str, sources: Sequence[str]) -> bool:
        """Whether the file has one of these matrices, but not all together: they could not be
        stacked."""
        if self._file is None or not self._take or len(sources) < 2:
            return False
        return _name_of(op, sources) not in self._file.parts and any(map(self.covers, sources))

    def keep(self, op: str, sources: Sequence[str], provider: str, weight: Weight) -> None:
        """Note the weight that a provider has made of these matrices, if all are stored ones."""
        if self._file is None and provider in self.packings and all(sources) and _keeps(weight):
            self._kept[_name_of(op, sources)] = provider, tuple(sources), weight

    def begin_writing(self) -> None:
        """Write what was kept, in a thread that gives way to others. The process does not end
        before it, unless `stop` is called."""
        if self._kept:
            weights, self._kept = self._kept, {}
            name = "inferno packed weights"
            threading.Thread(target=self._write, args=(weights,), name=name).start()

    def stop(self) -> None:
        """Give up writing."""
        self._stopped.set()

    def _write(self, weights: dict[str, tuple[str, tuple[str, ...], Weight]]) -> None:
        begin = time.monotonic() + _DELAY
        while time.monotonic() < begin and threading.main_thread().is_alive():
            if self._stopped.wait(0.05):
                return
        with suppress(OSError, AttributeError):  # one thread, on Linux only
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        parts = []
        for name, (provider, sources, weight) in weights.items():
            saved = _saved(self.packings[provider], weight)
            if saved is None:
                return
            about = {"provider": provider, "sources": sources, "about": dict(saved[0])}
            parts.append(Part(name, about, saved[1]))
        weights.clear()
        try:
            self._write_parts(parts)
        except (_StopError, OSError) as error:
            log.info("packed weights were not written: %s", error)

    def _write_parts(self, parts: Sequence[Part]) -> None:
        store, go_on = self.store, self._go_on()
        if not store.ready():
            return
        hashes = computed(list(self._states), store.folder, self._states, go_on)
        if hashes is None:
            return
        key = {**self._key, "files": hashes}
        if (file := store.open(key)) is not None:  # another process wrote it
            file.close()
            return
        path = store.write(key, self.about, parts, go_on)
        if path is not None:
            log.info("packed weights are kept in %s", path)

    def _go_on(self) -> Iterator[None]:
        while not self._stopped.is_set():
            yield
        raise _StopError("the engine is closed")


def _name_of(op: str, sources: Sequence[str]) -> str:
    """Name the weight that `op` uses for the matrices at these paths."""
    if len(sources) == 1:
        return f"{op} {sources[0]}"
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16]
    return f"{op} {sources[0]} and {len(sources) - 1} more, {digest}"


def _keeps(weight: Weight) -> bool:
    """Whether a weight can be written: as its provider does, or permuted columns of one."""
    from inferno.nn import Permuted, Wrapper

    return not isinstance(weight, Wrapper) or type(weight) is Permuted


def _saved(
    packing: Packing, weight: Weight
) -> tuple[Mapping[str, Any], Sequence[memoryview]] | None:
    """Return the description and the bytes of a weight; of permuted columns, their order comes
    last."""
    import torch

    from inferno.nn import Permuted

    if not isinstance(weight, Permuted):
        return packing.save(weight)
    if (saved := packing.save(weight.inner)) is None:
        return None
    order = weight.order.cpu().contiguous().view(torch.uint8).numpy().data
    return {"inner": saved[0], "order": order.nbytes}, [*saved[1], order]


def _loaded(packing: Packing, about: Mapping[str, Any], data: memoryview) -> Weight:
    """Return the weight of `_saved`. Raises ValueError or KeyError."""
    if "order" not in about:
        return packing.load(about, data)
    import torch

    from inferno.nn import Permuted

    end = data.nbytes - about["order"]
    inner = packing.load(about["inner"], data[:end])
    order_I = torch.frombuffer(data, dtype=torch.uint8, offset=end).clone().view(torch.int64)
    if not torch.equal(order_I.sort().values, torch.arange(inner.shape[1])):
        raise ValueError("the order of the columns is damaged")
    return Permuted(inner, order_I)
