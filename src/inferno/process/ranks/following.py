"""A follower: it loads its part of the model, runs the steps that rank 0 sends, and gives memory
back or has other weights when rank 0 does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, evolve

from inferno.catalog import Catalog
from inferno.constraints import Drafts
from inferno.contracts import Communicator, Drafter
from inferno.errors import InfernoError, PluginError
from inferno.images.seeing import Seeing
from inferno.plan import AdapterPlaces, Opened, plan_from_json, plan_of_rank, reopen
from inferno.process.prepare import prepared
from inferno.process.protocol import Failure
from inferno.process.ranks import messages
from inferno.process.ranks.arriving import first_of, reach
from inferno.process.ranks.binding import bind
from inferno.process.ranks.exchange import Build, place_of
from inferno.process.ranks.group import PLAN
from inferno.process.ranks.keeping_blocks import KeptBlocks
from inferno.process.ranks.keeping_links import KeptBoth, KeptLink
from inferno.process.ranks.late_blocks import LateBlocks
from inferno.process.ranks.meeting import Meeting
from inferno.process.ranks.passing import Neighbours, build_of, meeting_by
from inferno.process.ranks.proposing import is_late, is_shared
from inferno.process.ranks.running import FollowingRunner, LateRunner, NoDrafts
from inferno.process.ranks.sending_pixels import SentPixels
from inferno.stores.opening import as_one, build_stores
from inferno.weights.adapters import Adapters
from inferno.weights.kernels import ops_of
from inferno.weights.loading import begin_of, capture_of, load_drafter, load_model
from inferno.weights.packing import PackedWeights
from inferno.weights.resident import Loaded, Resident
from inferno.weights.updates import Update

_IDLE = 1.0
"""Seconds to wait for a step before checking whether the parent is alive."""
Receive = Callable[[int | None], tuple[bytes, bytes]]
"""Returns the next message's kind and body, or NOTHING once a descriptor beside becomes
readable."""


@define(eq=False)
class FollowingResident(Resident):
    """A rank's part of a model: it is told its drafts, or proposes them as rank 0 does."""

    def _loaded_from(self, opened: Opened, packed: PackedWeights | None) -> Loaded:
        model, ops = load_model(opened, packed), ops_of(opened)
        drafter: Drafter | None = NoDrafts() if opened.plan.speculation is not None else None
        if is_shared(opened) and (opened.span is None or opened.span.ends):
            drafter = load_drafter(opened, model, None)
        return Loaded(model, ops, drafter, Adapters.of(opened, model, ops))


@define(eq=False)
class Follower:
    """A rank's part of the model, what runs its steps, and an update that rank 0 has announced."""

    resident: FollowingResident
    runner: FollowingRunner | None = None
    """None while the cache's memory is given back."""
    kept: KeptBlocks | None = None
    """The store of its parts of blocks, if there is one."""
    pixels: SentPixels | None = None
    """What it was sent of images; None: this machine has their files."""
    _update: Update | None = None

    @classmethod
    def load(cls, opened: Opened, *, far: bool = False) -> Follower:
        """Load a rank's part of the model, and allocate its cache. `far`: this is another machine
        than the first rank's."""
        with prepared(opened) as packed:
            pixels = SentPixels() if far else None
            follower = cls(FollowingResident.load(opened, packed), pixels=pixels)
        follower.run()
        return follower

    def run(self) -> None:
        """Allocate the cache, and be ready for steps."""
        opened, loaded = self.resident.opened, self.resident.present
        plan = opened.plan
        given = loaded.model, plan, loaded.ops, capture_of(opened), loaded.drafter
        around = Neighbours.of(opened, loaded.model)
        kind = LateRunner if is_late(opened) else FollowingRunner
        self.runner = kind(around, *given, None, begin_of(opened, plan), adapters=loaded.adapters)
        if self.pixels is not None:
            self.pixels = SentPixels()  # as rank 0 begins to send anew
        for part in self._seeing:
            part.sent = self.pixels

    @property
    def _seeing(self) -> list[Seeing]:
        parts = self.runner._parts if self.runner is not None else ()
        return [part for part in parts if isinstance(part, Seeing) and part.encoders]

    @property
    def sees(self) -> bool:
        """Whether it computes images or audio."""
        return bool(self._seeing)

    @property
    def places(self) -> AdapterPlaces | None:
        """What rank 0 is told of adapters."""
        adapters = self.resident.present.adapters
        return adapters.places.told if adapters is not None and adapters.checked else None

    def change(self, change: messages.Change) -> None:
        """Do with the weights what rank 0 does. Raises as `Resident`."""
        match change.action:
            case "check":
                path = Path(change.path)
                self._update = self.resident.checked(path, held=change.temporary)
            case "forget" if self._update is not None:
                self._update.close()
                self._update = None
            case "apply":
                self.runner = None
                update, self._update = self._update, None
                assert update is not None, "it was checked"
                self.resident.apply(update, load=change.load)
            case "release":
                self.runner = None
                self.resident.release(change.level)
            case "restore":
                self.resident.restore()
            case "run":
                self.run()
            case "open_store":
                self.open_store(change.hashes)
            case "close_store":
                self.close_store()

    def open_store(self, hashes: Sequence[str] | None) -> None:
        """Open the store of this rank's parts of blocks. Raises OptionError."""
        assert self.runner is not None, "its cache is there"
        opened, places = self.resident.opened, self.runner.cache.places
        stores = here = build_stores(opened, opened.plan, places, hashes)
        if isinstance(self.runner, LateRunner):
            self.runner.late = [LateBlocks.of(each) for each in here]
            stores = [(late, late) for late in self.runner.late]
        one = as_one(opened.plan, stores, here)
        self.kept = KeptLink.of(one) if len(stores) == 1 else KeptBoth.of(one, *stores)
        self.runner.mover = self.kept.mover

    def close_store(self) -> None:
        store, self.kept = self.kept, None
        if store is not None:
            store.close()

    def close(self) -> None:
        self.close_store()
        self.runner = None
        self.resident.close()


def follow(follower: Follower, receive: Receive, say: Callable[[bytes, bytes], None]) -> None:
    """Run what rank 0 sends, until it ends the group. Tells it how changes have fared. Raises what
    makes one of another rank of it than rank 0 is: a change of weights that has begun."""

    def drafts(proposed: Drafts) -> Drafts:
        kind, body = receive(None)
        while kind == messages.PEEKED:  # of the last stage's ranks
            kind, body = receive(None)
        assert kind == messages.DRAFTS, "they follow their step"
        told: Drafts = messages.decode_drafts(body)
        return told

    def peeked(*given: Any) -> list[int]:
        kind, body = receive(None)
        if kind != messages.PEEKED:
            raise ConnectionError("rank 0 has left")
        drawn: list[int] = messages.decode_peeked(body)
        return drawn

    def say_words(failure: Failure | None) -> None:
        words = messages.Words(follower.resident.opened.rank, failure)
        say(messages.CHANGED, messages.encode(words))

    while True:
        if (store := follower.kept) is not None:
            for fetched in store.answers():
                say(messages.FETCHED, messages.encode(fetched))
            if any(asked := store.asked()):
                body = messages.encode(messages.Asked(follower.resident.opened.rank, *asked))
                say(messages.ASKED, body)
        kind, body = receive(None if store is None else store.waits_for)
        if kind == messages.NOTHING:
            continue
        if kind == messages.PIXELS:
            if follower.pixels is not None:
                follower.pixels.take(messages.decode_pixels(body))
            continue
        if kind == messages.STORE:
            if store is not None:
                store.take(messages.decode_store_call(body))
            continue
        if kind == messages.CHANGE:
            change: messages.Change = messages.decode_change(body)
            try:
                follower.change(change)
            except InfernoError as error:
                if change.action not in ("check", "open_store"):
                    raise
                say_words(Failure.of(error))
            else:
                say_words(None)
            continue
        runner = follower.runner
        if kind == messages.END:
            if runner is not None and runner.neighbours is not None:
                runner.neighbours.link.flush()
            return
        assert runner is not None, "there are no steps while its cache is given back"
        if kind == messages.CAPTURE:
            runner.capture_ahead(messages.decode_count(body))
            continue
        if kind in (messages.COMPUTE, messages.DREW, messages.PEEKED):
            if isinstance(runner, LateRunner):
                if kind == messages.COMPUTE:
                    runner.compute()
                else:
                    runner.learn(messages.decode_drawn(body))
            continue
        given: messages.NextStep = messages.decode_step(body)
        told = drafts if messages.has_drafts(given.step) else None
        if follower.pixels is not None:
            follower.pixels.update(given.step)
        if (drafting := runner.drafting) is not None:
            drafting.peek, drafting.is_shared = peeked, True
        if store is not None:
            store.note(given.step)
        if isinstance(runner, LateRunner):
            runner.begin(given.step, told)
            continue
        for drawn in given.drawn:
            runner.learn(drawn)
        runner.read_adapters(given.step)
        runner.launch(given.step, told)


def agree_on_levels(opened: Opened) -> None:
    """Raise PluginError if kernels here are of another level than rank 0's: a router would choose
    other experts."""
    for use in opened.plan.kernels:
        level = opened.parts.kernels[use.name].level
        if use.level and level is not None and (here := level()) != use.level:
            raise PluginError(
                f"rank {opened.rank} runs {use.name} at {here}, rank 0 at {use.level}",
                "Set the same level for all ranks.",
            )


def run(
    folder: Path,
    rank: int,
    catalog: Catalog | None = None,
    build: Build | None = None,
    alive: Callable[[], bool] = lambda: True,
) -> None:
    """Be a rank, until rank 0 ends the group or is no longer `alive`. What fails is said to rank 0,
    and raised. `build` replaces the communicator that the plan has chosen."""
    first = first_of(folder)
    wire = reach(folder, rank, first)

    def receive(beside: int | None = None) -> tuple[bytes, bytes]:
        try:
            while alive():
                if (message := wire.receive(_IDLE, beside)) is not None:
                    return message
                if beside is not None:
                    return messages.NOTHING, b""
        except EOFError as error:
            if first is not None:  # its machine joins again: this is not the end
                raise ConnectionError("rank 0 has gone") from error
        return messages.END, b""

    def say(kind: bytes, body: bytes) -> None:
        with suppress(EOFError):
            wire.send(kind, body)

    def words(
        failure: Failure | None, places: AdapterPlaces | None = None, *, sees: bool = False
    ) -> bytes:
        return messages.encode(messages.Words(rank, failure, places, sees))

    def listen() -> None:
        kind, body = receive()
        if kind != messages.MEET:
            raise ConnectionError("rank 0 has ended the group")
        meeting.take(body)

    meeting = Meeting(wire.send, listen)
    communicator: Communicator | None = None
    follower: Follower | None = None
    try:
        plan = plan_of_rank(plan_from_json((folder / PLAN).read_bytes()), rank)
        assert plan.ranks is not None, "a plan with ranks"
        bind(plan, rank)
        met = str(folder) if first is None or not first.folder else first.folder
        with reopen(plan, catalog) as opened:
            build = build or build_of(opened)
            if (uses := plan.ranks.join) is not None:
                build = meeting_by(build, first.own_host if first else uses.host, meeting)
            communicator = build(place_of(plan, rank, met))
            opened = evolve(opened, rank=rank, communicator=communicator)
            agree_on_levels(opened)
            follower = Follower.load(opened, far=first is not None)
        say(messages.WORDS, words(None, follower.places, sees=follower.sees))
        communicator.connect()
        follow(follower, receive, say)
    except BaseException as error:
        if not isinstance(error, ConnectionError):  # why another rank has left, that one says
            say(messages.WORDS, words(Failure.of(error)))
        raise
    finally:
        if follower is not None:
            follower.close()
        if communicator is not None:
            communicator.close()
        wire.close()
