"""The engine's own rank: it tells the others what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, evolve

from inferno.constraints import Drafts, Masks
from inferno.core.home import Home
from inferno.core.runner import LaunchedStep, ModelRunner
from inferno.core.types import Sampled, Step
from inferno.errors import UnsupportedError
from inferno.plan import Opened
from inferno.process.ranks import messages
from inferno.process.ranks.binding import bind
from inferno.process.ranks.exchange import Build, build_of
from inferno.process.ranks.group import Group, Launch, Start
from inferno.process.ranks.machines import Machines
from inferno.weights.packing import PackedWeights


class LeadingRunner(ModelRunner):
    """Runs steps as the other ranks do, and draws their tokens. An error in a step ends the group:
    the others are in a layer that this rank has left."""

    def __init__(self, group: Group, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._group = group
        self._latest: LaunchedStep | None = None

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> LaunchedStep:
        with self._together():
            self._group.send(messages.STEP, messages.encode_step(step, self._drawn()))
            told = self._telling(cut) if messages.has_drafts(step) else cut
            self._latest = super().launch(step, told)
            return self._latest

    def draw(self, launched: LaunchedStep, masks: Masks) -> Sampled | Callable[[], Sampled]:
        with self._together():
            return super().draw(launched, masks)

    def _drawn(self) -> messages.Drawn:
        """Return what the step before drew."""
        if self._latest is None or self._latest.arrays is None:
            return []
        if self._latest.sampled is None:  # an error came between: the others do not know its tokens
            raise self._group.end(None)
        return messages.drawn_by(self._latest.result(), self._latest.arrays.sampling_rows)

    def _telling(self, cut: Callable[[Drafts], Drafts] | None) -> Callable[[Drafts], Drafts]:
        def told(drafts: Drafts) -> Drafts:
            kept = drafts if cut is None else cut(drafts)
            self._group.send(messages.DRAFTS, messages.encode_drafts(kept))
            return kept

        return told

    def capture_ahead(self, most: int = 1 << 30) -> int:
        with self._together():
            self._group.send(messages.CAPTURE, messages.encode(most))
            return super().capture_ahead(most)

    def verify_cost(self) -> float | None:
        """Return None: how often a measurement runs a step depends on its time, which others do not
        have."""
        return None

    @contextmanager
    def _together(self) -> Iterator[None]:
        self._group.check()
        try:
            yield
        except BaseException as error:
            raise self._group.end(error) from error


@define(eq=False)
class LeadingHome(Home):
    """The home of an engine with several ranks."""

    group: Group
    unbind: Callable[[], None]
    """Lets the thread that loaded it run on all its cores again."""

    @classmethod
    def starting(
        cls,
        start: Start,
        build: Build | None = None,
        launch: Launch | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Callable[[Opened, PackedWeights | None], Home]:
        """Return what loads a model, with ranks that `start` starts, and other machines that
        `launch` starts; they are waited for while the engine is `wanted`. `build` replaces the
        communicator that the plan has chosen."""

        def load(opened: Opened, packed: PackedWeights | None) -> Home:
            assert opened.plan.ranks is not None, "a plan with ranks"
            machines = Machines(opened) if opened.plan.ranks.join is not None else None
            group = Group(opened.plan, start, build or build_of(opened), machines, launch)
            unbind = bind(opened.plan, 0)
            try:
                shared = evolve(opened, communicator=group.communicator)
                home = cls.load(shared, packed, group=group, unbind=unbind)
                group.meet(wanted)
            except BaseException as error:
                unbind()
                raise group.end(error) from error
            return home

        return load

    def runner(self, *given: Any, **more: Any) -> ModelRunner:
        return LeadingRunner(self.group, *given, **more)

    def check_change(self) -> None:
        """Raise UnsupportedError: the others have no way to give their memory back."""
        raise UnsupportedError(
            f"an engine of {self.group.ranks} ranks cannot sleep or change its weights yet",
            "Start it without --tp, or stop the process.",
        )

    def rest(self) -> None:
        self.group.check()

    def close(self) -> None:
        self.group.close()
        self.unbind()
        super().close()
