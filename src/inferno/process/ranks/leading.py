"""The engine's own rank: it tells the others what it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define, evolve

from inferno.constraints import NO_MASKS, Drafts, Masks
from inferno.contracts import LinkIndex, Sessions
from inferno.core.home import Home
from inferno.core.kvcache import CacheGroups
from inferno.core.runner import LaunchedStep, ModelRunner
from inferno.core.types import Sampled, Step
from inferno.plan import Opened, Plan, plan_of_rank
from inferno.process.ranks import messages
from inferno.process.ranks.binding import bind
from inferno.process.ranks.changing import LeadingResident
from inferno.process.ranks.exchange import Build
from inferno.process.ranks.group import Group, Launch, Start
from inferno.process.ranks.late_blocks import LateBlocks
from inferno.process.ranks.machines import Machines
from inferno.process.ranks.messages import Change
from inferno.process.ranks.passing import Neighbours, build_of
from inferno.process.ranks.proposing import Proposing, is_late, is_shared
from inferno.process.ranks.sending_pixels import Wanted, send_all
from inferno.process.ranks.sharing_blocks import SharedStore
from inferno.process.ranks.sharing_links import SharedLink
from inferno.stores import NoStore, open_store
from inferno.stores.layouts import file_hashes
from inferno.stores.stacked import StoreHalves
from inferno.weights.packing import PackedWeights

if TYPE_CHECKING:
    from inferno.device.places import Places


class LeadingRunner(ModelRunner):
    """Runs steps as the other ranks do, and draws their tokens. An error in a step ends the group:
    the others are in a layer that this rank has left."""

    def __init__(self, group: Group, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._group = group
        self._latest: LaunchedStep | None = None
        self._wanted = Wanted()

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> LaunchedStep:
        with self._group.together():
            self._send_pixels(step)
            self._group.send(messages.STEP, messages.encode_step(step, self._drawn()))
            told = self._telling(cut) if messages.has_drafts(step) else cut
            self._latest = super().launch(step, told)
            return self._latest

    def draw(self, launched: LaunchedStep, masks: Masks) -> Sampled | Callable[[], Sampled]:
        with self._group.together():
            sampled = super().draw(launched, masks)
            self._group.check()  # the device may have gone on without the others
            return sampled

    def _send_pixels(self, step: Step) -> None:
        """Send other machines the images that a step needs which is about to be sent."""
        if self._group.seeing and (images := self._wanted.update(step)):
            self._before_pixels()
            send_all(images, self._group.send_to_seeing)

    def _before_pixels(self) -> None:
        """Let other ranks read what they are sent."""

    def _drawn(self) -> list[messages.Drawn]:
        """Return what the step before drew."""
        if (latest := self._latest) is None:
            return []
        if latest.arrays is not None and latest.sampled is None:
            raise self._group.end(None)  # an error came between: the others do not know its tokens
        return [_drawn_by(latest)]

    def _telling(self, cut: Callable[[Drafts], Drafts] | None) -> Callable[[Drafts], Drafts]:
        def told(drafts: Drafts) -> Drafts:
            remaining = drafts if cut is None else cut(drafts)
            self._group.send(messages.DRAFTS, messages.encode_drafts(remaining))
            return remaining

        return told

    def share_drafting(self) -> None:
        """Tell the others what is drawn for drafts: they propose them too."""
        if (drafting := self.drafting) is None:
            return
        peek, drafting.is_shared = drafting.peek, True

        def told(*given: Any) -> list[int]:
            drawn = [int(token_id) for token_id in peek(*given)]
            self._group.send(messages.PEEKED, messages.encode(drawn))
            return drawn

        drafting.peek = told

    def capture_ahead(self, most: int = 1 << 30) -> int:
        with self._group.together():
            self._group.send(messages.CAPTURE, messages.encode(most))
            return super().capture_ahead(most)

    def verify_cost(self) -> float | None:
        """Return None: how often a measurement runs a step depends on its time, which others do not
        have."""
        return None


@define(eq=False)
class Pending:
    """A step that the stages before this one may be computing."""

    ticket: LaunchedStep
    drafts: Drafts
    """Those to verify."""
    masks: Masks = NO_MASKS

    def told(self, proposed: Drafts) -> Drafts:
        """Return the drafts that all stages have been told."""
        return self.drafts


class LastStage(LeadingRunner):
    """The engine's rank of a pipeline: a step is sent to the stages before this one when it is
    launched, and computed here when its results are taken, while they go on with later steps."""

    def __init__(self, group: Group, stages: int, *given: Any, **more: Any) -> None:
        super().__init__(group, *given, **more)
        self.lag = stages - 1
        self._proposing = Proposing.of(self)
        self._shares = False
        """Whether other ranks of this stage propose drafts too."""
        self._pending = deque[Pending]()
        self._early = dict[LaunchedStep, Sampled]()
        """Results of steps that were computed before the engine asked for them."""
        self._untold = list[messages.Drawn]()
        """What steps drew that the others have not been told."""
        self.late: Sequence[LateBlocks] = ()
        """This rank's stores of blocks, if there are any."""

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> LaunchedStep:
        with self._group.together():
            self._send_pixels(step)
            drawn, self._untold = self._untold, []
            self._group.send(messages.STEP, messages.encode_step(step, drawn))
            drafts: Drafts = step.drafts
            if self._proposing is not None:
                drafts = {**drafts, **self._proposing.launched(step)}
            drafts = cut(drafts) if cut is not None else drafts
            if messages.has_drafts(step):
                self._group.send(messages.DRAFTS, messages.encode_drafts(drafts))
            ticket = LaunchedStep(step, self.plan, self._later)
            self._pending.append(Pending(ticket, drafts))
            for each in self.late:
                each.launched()
            return ticket

    def _before_pixels(self) -> None:
        """Compute the steps in flight if ranks of this stage are sent pixels: they wait in one of
        them for this rank, and read nothing more meanwhile than their sockets hold."""
        if min(self._group.seeing) < self._group.ranks // self._group.stages:
            for ticket in [pending.ticket for pending in self._pending]:
                self._early[ticket] = self._results(ticket)

    def proposed(self, step: Step) -> Drafts:
        """Return none: `launch` has asked the proposer."""
        return {}

    def share_drafting(self) -> None:
        super().share_drafting()
        self._shares = True

    def _later(self, ticket: LaunchedStep, masks: Masks) -> Callable[[], Sampled]:
        """Draw a step's tokens once it is computed."""
        pending = self._pending[-1]
        assert pending.ticket is ticket, "a step is drawn before the next one is launched"
        pending.masks = masks
        return partial(self._results, ticket)

    def _results(self, ticket: LaunchedStep) -> Sampled:
        """Compute the steps up to this one: those that nobody waits for any more too, whose hidden
        states come first."""
        if (early := self._early.pop(ticket, None)) is not None:
            return early
        while True:
            pending = self._pending.popleft()
            with self._group.together():
                if self._shares:
                    self._group.send(messages.COMPUTE)
                computed = ModelRunner.launch(self, pending.ticket.step, pending.told)
                computed.draw(pending.masks)
                self._group.check()
                self._untold.append(drawn := _drawn_by(computed))
                if self._shares:
                    self._group.send(messages.DREW, messages.encode(drawn))
            for each in self.late:
                each.computed()
            if self._proposing is not None:
                self._proposing.computed(computed, drawn)
            if pending.ticket is ticket:
                return computed.result()

    @property
    def adapters(self) -> set[str]:
        """The digests of those that the steps in flight write into slots."""
        begun = (new for each in self._pending for new in each.ticket.step.new_sequences)
        return {new.request.content[0] for new in begun}

    def settle(self) -> None:
        """Compute the steps in flight, which other ranks of this stage are in."""
        while self._pending:
            self._results(self._pending[-1].ticket)


def _drawn_by(launched: LaunchedStep) -> messages.Drawn:
    if launched.arrays is None:
        return []
    return messages.drawn_by(launched.result(), launched.arrays.sampling_rows)


@define(eq=False)
class LeadingHome(Home):
    """The home of an engine with several ranks."""

    group: Group
    unbind: Callable[[], None]
    """Lets the thread that loaded it run on all its cores again."""
    last: LastStage | None = None
    """What runs steps, if there are pipeline stages."""

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
                own = plan_of_rank(opened.plan, 0)
                shared = evolve(opened, plan=own, communicator=group.communicator)
                home = cls.load(shared, packed, group=group, unbind=unbind)
                home.resident = LeadingResident.leading(home.resident, group)
                group.meet(wanted)
                if (adapters := home.resident.present.adapters) is not None and group.places:
                    adapters.meet(group.places)
            except BaseException as error:
                unbind()
                raise group.end(error) from error
            return home

        return load

    def run(
        self, plan: Plan, groups: CacheGroups, sessions: Sessions | None, *, trial: bool = False
    ) -> tuple[ModelRunner, NoStore]:
        assert plan.ranks is not None, "a plan with ranks"
        return super().run(plan_of_rank(plan, 0), groups, sessions, trial=trial)

    def runner(self, *given: Any, **more: Any) -> ModelRunner:
        around = Neighbours.of(self.resident.opened, self.resident.present.model)
        if around is None:
            leading = LeadingRunner(self.group, *given, **more)
            if is_shared(self.resident.opened):
                leading.share_drafting()
            return leading
        self.last = LastStage(self.group, self.group.stages, *given, parts=[around], **more)
        if is_late(self.resident.opened):
            self.last.share_drafting()
        return self.last

    def forget(self, kept: Collection[str]) -> None:
        in_flight = self.last.adapters if self.last is not None else ()
        super().forget({*kept, *in_flight})

    def store(
        self, plan: Plan, groups: CacheGroups, places: Sequence[Places], sessions: Sessions | None
    ) -> NoStore:
        """Have all ranks open their stores. A rank that cannot ends the group."""
        opened = self.resident.opened
        if plan.store is None:
            return super().store(plan, groups, places, sessions)
        change = Change(action="open_store", hashes=file_hashes(opened, plan))
        with self.group.changing(change):
            return open_store(opened, plan, groups, places, sessions, self._shared)

    def _shared(self, own: Sequence[StoreHalves]) -> Sequence[StoreHalves]:
        """Return the stores of all ranks, from this rank's own."""
        if self.last is not None:
            self.last.late = [LateBlocks.of(each) for each in own]
            own = [(late, late) for late in self.last.late]
        stores = [
            (SharedLink if isinstance(each[0], LinkIndex) else SharedStore).of(self.group, each)
            for each in own
        ]
        if len(stores) > 1:
            stores[0].join(stores[1])
        return [(store, store) for store in stores]

    def settle(self) -> None:
        if self.last is not None:
            self.last.settle()

    def rerun(
        self, plan: Plan, groups: CacheGroups, sessions: Sessions | None
    ) -> tuple[ModelRunner, NoStore]:
        with self.group.changing(Change(action="run")):
            pass
        return super().rerun(plan, groups, sessions)

    def rest(self) -> None:
        self.group.check()

    def close(self) -> None:
        if self.last is not None:
            with suppress(Exception):  # then the group has ended
                self.last.settle()
        self.group.close()
        self.unbind()
        super().close()
