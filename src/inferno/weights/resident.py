"""A loaded model whose memory can be given back, and whose weights can be replaced.

All of it goes through loading: weights that come back, or others in their place, are paired,
quantized, packed and finalized as at the start, whatever the architecture, schemes and kernels.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

from attrs import define, evolve, frozen
from torch import nn

from inferno.contracts import Drafter
from inferno.contracts.checkpoints import left_out
from inferno.device.offload import Offloaded, empty_caches
from inferno.errors import CheckpointError
from inferno.host import give_memory_back
from inferno.nn import Attention, State
from inferno.ops.reference import Ops
from inferno.plan import Opened, reopen, unused_tensors
from inferno.plan.composite import Composite
from inferno.plan.encoder_file import open_stored
from inferno.request.requests import FIRST_VERSION
from inferno.weights.adapters import Adapters, KeptAdapters
from inferno.weights.kernels import ops_of
from inferno.weights.loading import load_drafter, load_model
from inferno.weights.packing import PackedWeights
from inferno.weights.updates import Update, Updated, check_update, needed

log = logging.getLogger("inferno.weights")


@frozen(eq=False)
class Loaded:
    """What loading makes of a plan."""

    model: nn.Module
    ops: Ops
    drafter: Drafter | None
    adapters: Adapters | None

    @classmethod
    def of(cls, opened: Opened, packed: PackedWeights | None = None) -> Self:
        """Load a model, and the one that drafts for it. Raises CheckpointError, DeviceError,
        PluginError, OutOfMemoryError."""
        drafting = load_model(opened.draft) if opened.draft is not None else None
        model, ops = load_model(opened, packed), ops_of(opened)
        drafter = load_drafter(opened, model, drafting)
        return cls(model, ops, drafter, Adapters.of(opened, model, ops))

    @property
    def models(self) -> list[nn.Module]:
        """The model, and the layers that draft for it."""
        layers = self.drafter.layers if self.drafter is not None else None
        return [self.model] if layers is None else [self.model, layers]

    def unbind(self) -> None:
        """Let go of the cache that the layers were bound to."""
        for model in self.models:
            for module in model.modules():
                if isinstance(module, Attention | State):
                    module.cache = {}


@define(eq=False)
class Resident:
    """A model in memory: as the plan says, or with the weights of updates."""

    opened: Opened
    """Once loading is over, its checkpoint is closed."""
    loaded: Loaded | None
    """None while its weights are in no memory."""
    version: str = FIRST_VERSION
    """Of its weights: the caller's, or how often they were updated."""
    _packed: PackedWeights | None = None
    _updates: tuple[Update, ...] = ()
    _count: int = 0
    _offloaded: Offloaded | None = None
    _adapters: KeptAdapters | None = None
    """What is kept of adapters while the weights are in no memory."""

    @classmethod
    def load(cls, opened: Opened, packed: PackedWeights | None = None) -> Self:
        """Load an opened model. Raises as `Loaded.of`."""
        resident = cls(opened, None, packed=packed)
        resident.loaded = resident._loaded_from(opened, packed)
        return resident

    def _loaded_from(self, opened: Opened, packed: PackedWeights | None) -> Loaded:
        return Loaded.of(opened, packed)

    @property
    def present(self) -> Loaded:
        assert self.loaded is not None, "the weights are in memory"
        return self.loaded

    def release(self, level: int) -> None:
        """Give memory back: by level 1 that of a device, whose weights are kept in host memory; by
        level 2 all. What holds the model's cache must have been dropped."""
        if self.loaded is None:
            return
        self.loaded.unbind()
        kind = self.opened.plan.device.kind
        if level > 1:
            self._drop()
        elif self._offloaded is None and kind != "cpu":
            self._offloaded = Offloaded.of(self.loaded.models, kind)
        self._give_back()

    def restore(self) -> Loaded:
        """Load what was released. Raises as `Loaded.of`; then the weights are in no memory."""
        if self._offloaded is not None:
            self._offloaded.restore()
            self._offloaded = None
        if self.loaded is None:
            with self._open(self._updates, self.opened.updated) as opened:
                self._load(opened)
        return self.present

    def checked(self, path: Path, *, temporary: bool = False, held: bool = False) -> Update:
        """Read the headers of tensors and check them against the checkpoint, and their numbers.
        Changes nothing. `temporary` and `held` as in `Update.of`. Raises CheckpointError."""
        update, plan = Update.of(path, temporary=temporary, held=held), self.opened.plan
        try:
            names, patterns = update.tensors.stored, unused_tensors(self.opened.config)
            unread = [n for n in names if any(fnmatchcase(n, p) for p in patterns)]
            self._check_taken(update)
            with closing(open_stored(plan, self.opened.parts.catalog)) as checkpoint:
                check_update(update, checkpoint, plan.dtype, {*unread, *left_out(checkpoint)})
            for other in needed([*self._updates, update]):
                other.check_unchanged()
        except BaseException:
            update.close()
            raise
        return update

    def _check_taken(self, update: Update) -> None:
        checkpoint = self.opened.checkpoint
        if not isinstance(checkpoint, Composite):
            return
        for name in update.tensors.stored:
            if name.rpartition(".")[0] in checkpoint.taken:
                raise CheckpointError(
                    f"{name} is not updated: its module is taken from another model (--override)",
                    "Load the model without that override. Nothing was changed.",
                )

    def apply(self, update: Update, version: str | None = None, *, load: bool = True) -> None:
        """Replace weights, after `checked`. The old ones are dropped before the new ones are
        loaded: there may be no memory for both. Without `load`, they are loaded by `restore`. If
        the new ones cannot be loaded, the old ones are again, and the error is raised; if those
        cannot either, the weights are in no memory, and the error says so."""
        before = self._updates
        after = needed([*before, update])
        opened = evolve(self.opened, updated=secrets.token_hex(16))
        if load:
            try:
                self._replace(before, after, opened.updated)
            except BaseException:
                update.close()
                raise
        else:
            self._drop()
            self._give_back()
        self._updates, self._count, self.opened = after, self._count + 1, opened
        self.version = str(self._count) if version is None else version
        for each in before:
            if each not in after:
                each.close()
        log.info("the weights were updated: version %s", self.version)

    def _give_back(self) -> None:
        """Give back the memory of what was dropped, also what allocators keep of it."""
        give_memory_back()
        empty_caches(self.opened.plan.device.kind)

    def close(self) -> None:
        """Let go of the weights, and delete temporary files."""
        self.loaded = self._offloaded = None
        for update in self._updates:
            update.close()
        self._updates = ()

    def _replace(self, before: tuple[Update, ...], after: tuple[Update, ...], updated: str) -> None:
        with self._open(after, updated) as opened:
            self._drop()
            self._give_back()
            try:
                self._load(opened)
                return
            except Exception as error:
                self.loaded, cause = None, error
        try:
            with self._open(before, self.opened.updated) as opened:
                self._load(opened)
        except Exception as error:
            self.loaded = None
            raise CheckpointError(
                f"the new weights could not be loaded ({cause}), nor the old ones again ({error})",
                "The model is asleep: update all its weights, or load it again.",
            ) from cause
        raise cause

    def _load(self, opened: Opened) -> None:
        packed = None if opened.updated else PackedWeights.of(opened)
        exists = packed is not None and packed.found
        with packed.reading() if packed is not None and exists else nullcontext():
            self.loaded = self._loaded_from(opened, packed if exists else None)
        if self.loaded.adapters is not None and self._adapters is not None:
            self.loaded.adapters.adopt(self._adapters)
            self._adapters = None

    def _drop(self) -> None:
        if self._packed is not None:
            self._packed.stop()  # it holds weights until they are written
            self._packed = None
        if self.loaded is not None and self.loaded.adapters is not None:
            self._adapters = self.loaded.adapters.kept
        self.loaded = self._offloaded = None

    @contextmanager
    def _open(self, updates: tuple[Update, ...], updated: str) -> Iterator[Opened]:
        opened = reopen(
            self.opened.plan,
            self.opened.parts.catalog,
            update=lambda checkpoint: Updated.of(checkpoint, updates),
            updated=updated,
        )
        with opened:
            yield evolve(opened, rank=self.opened.rank, communicator=self.opened.communicator)
