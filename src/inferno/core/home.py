"""Where an engine's model lives: makes what runs it, again after its memory was given back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from attrs import define

from inferno.constraints import Constraint, Grammars
from inferno.contracts import Sessions
from inferno.core.kvcache import CacheGroups
from inferno.device import device_errors
from inferno.plan import Opened, Plan
from inferno.request.requests import Request
from inferno.stores import NO_STORE, NoStore, open_store
from inferno.weights.loading import begin_of, capture_of
from inferno.weights.packing import PackedWeights
from inferno.weights.resident import Resident

if TYPE_CHECKING:
    from inferno.core.runner import ModelRunner
    from inferno.device.places import Places


@define(eq=False)
class Home:
    """A loaded model, and how it is run."""

    resident: Resident
    again: Callable[[], tuple[ModelRunner, NoStore]]
    """Runs the model that is loaded now as `Engine.load` ran the first one."""
    _grammars: Grammars

    @classmethod
    def load(cls, opened: Opened, packed: PackedWeights | None = None, **more: Any) -> Self:
        """Load an opened model. `more` are the other fields of a class that has some. Raises
        CheckpointError, DeviceError, PluginError, OutOfMemoryError."""

        def again() -> tuple[ModelRunner, NoStore]:
            raise AssertionError("`Engine.load` sets it")

        return cls(Resident.load(opened, packed), again, Grammars.of(opened), **more)

    def runner(self, *given: Any, **more: Any) -> ModelRunner:
        """Return what runs steps."""
        from inferno.core.runner import ModelRunner

        return ModelRunner(*given, **more)

    def run(
        self, plan: Plan, groups: CacheGroups, sessions: Sessions | None, *, trial: bool = False
    ) -> tuple[ModelRunner, NoStore]:
        """Allocate the cache, and open the store of its blocks, which are kept for sessions."""
        opened, loaded = self.resident.opened, self.resident.present
        captures = not trial or (plan.capture is not None and plan.capture.ahead)
        capture = capture_of(opened) if captures else None
        draft = opened.draft if captures else None
        drafts = loaded.drafter, capture_of(draft) if draft is not None else None
        others = begin_of(opened, plan), opened.parts.logits_processors
        given = loaded.model, plan, loaded.ops, capture, *drafts, *others
        runner = self.runner(*given, adapters=loaded.adapters)
        places = runner.cache.places
        store = NO_STORE if trial else self.store(plan, groups, places, sessions)
        runner.mover = store.mover
        return runner, store

    def store(
        self, plan: Plan, groups: CacheGroups, places: Sequence[Places], sessions: Sessions | None
    ) -> NoStore:
        """Open the store of the cache's blocks at these places."""
        return open_store(self.resident.opened, plan, groups, places, sessions)

    def rerun(
        self, plan: Plan, groups: CacheGroups, sessions: Sessions | None
    ) -> tuple[ModelRunner, NoStore]:
        """The same for weights that came back, with the steps that are captured ahead."""
        runner, store = self.run(plan, groups, sessions)
        runner.capture_ahead()
        return runner, store

    def errors(self, purpose: str) -> AbstractContextManager[None]:
        """Context in which torch's errors about the device become the engine's."""
        return device_errors(self.resident.opened.plan.device, purpose)

    def constrain(self, request: Request) -> Constraint | None:
        """Read a request's adapter, and return its constraint."""
        if request.adapter is not None and (adapters := self.resident.present.adapters) is not None:
            adapters.read(request.adapter)
        return self._grammars.constraint_of(request.params, request.tenant)

    def forget(self, kept: Collection[str]) -> None:
        """Forget all adapters but those of these digests."""
        if (adapters := self.resident.present.adapters) is not None:
            adapters.keep(kept)

    def settle(self) -> None:
        """Compute what is left of launched steps: an engine that drops them takes no results."""

    def rest(self) -> None:
        """Take note of what has ended, while there is nothing to compute."""

    def close(self) -> None:
        """Let go of the weights."""
        self.resident.close()
