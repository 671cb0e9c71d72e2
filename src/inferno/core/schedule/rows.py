"""The rows of running sequences: who has them, and what the runner must be told of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import count as counter

from attrs import define, field

from inferno.core.kvcache import CacheGroups, Match, fork_of
from inferno.core.types import BlockUpdate, Copy, Move, Sequence
from inferno.plan.step_cost import Work
from inferno.stores import NO_STORE, NoStore
from inferno.weights.adapter_slots import AdapterSlots


@define(eq=False)
class Rows:
    """Gives rows and blocks to sequences, and takes them back."""

    groups: CacheGroups
    free: list[int]
    store: NoStore = NO_STORE
    adapters: AdapterSlots = field(factory=AdapterSlots)
    running: dict[int, Sequence] = field(factory=dict)
    """By row, first admitted first."""
    turn: list[Sequence] = field(factory=list)
    """Those that take part in the step that is planned, the new ones left out."""
    in_flight: deque[list[Sequence | None]] = field(factory=deque)
    """The sequence of each slice of each planned step; None once it has lost its row."""
    updates: list[BlockUpdate] = field(factory=list)
    """Changes of block tables that the runner has not received yet; so are `moves`, `copies`."""
    moves: list[Move] = field(factory=list)
    copies: list[Copy] = field(factory=list)
    accepted: dict[int, list[Copy]] = field(factory=dict)
    """By row, what it takes over of the draft after which it goes on."""
    _arriving: dict[int, Sequence] = field(factory=dict)
    """By the key of the move that they wait for."""
    _keys: counter[int] = field(factory=counter)

    def take(self, sequence: Sequence, match: Match) -> None:
        """Give a sequence a row and its cached blocks, the last one as a copy that may have to
        arrive first. Blocks that a store loads are cached once the step is committed."""
        groups, store = self.groups, self.store
        sequence.row = self.free.pop()
        sequence.adapter_slot = self.adapters.take(sequence.request.content[0])
        self.running[sequence.row] = sequence
        sequence.num_inserted = match.num_cached
        sequence.num_computed = match.num_blocks * groups.block_size
        # Before `resume`, which gives places to the parts that are to be loaded.
        missing = store.missing(match)
        updates, copies = groups.resume(sequence, match)
        self.updates += updates
        self.copies += copies
        running = self.running.values()
        source = None
        if missing and not store.load(sequence, missing, alone=len(running) == 1):
            self._wait(sequence)
        else:
            source = fork_of(sequence, match.last, running, groups.block_size, self._is_whole)
        if source is not None:
            updates, moved = groups.acquire_copy(sequence, source)
            self.updates += updates
            if moved:
                key = self._wait(sequence)
                self.moves += [Move(key, *places) for places in moved]
            sequence.num_computed = len(sequence.token_ids) - 1
        sequence.num_planned = sequence.num_computed

    def _is_whole(self, block: int) -> bool:
        """Whether a block can be moved: not if its step brings a part of it, after the moves."""
        groups, brought = self.groups, {(copy.group, copy.target) for copy in self.copies}
        return groups.has_places(block) and not any(
            (group.index, group.place(block)) in brought for group in groups.groups if brought
        )

    def _wait(self, sequence: Sequence) -> int:
        """Let a sequence wait. Returns the key with which it goes on."""
        sequence.arriving = key = next(self._keys)
        self._arriving[key] = sequence
        return key

    def arrived(self, keys: Collection[int]) -> None:
        """Let the sequences go on that wait for these moves, or for loads that are planned."""
        landed = self.store.landed()
        if not (keys or landed):  # nearly always
            return
        for key in (*keys, *(sequence.arriving for sequence in landed)):
            if key is not None and (sequence := self._arriving.pop(key, None)) is not None:
                sequence.arriving = None

    def streams(self) -> tuple[Work, bool]:
        """Return what computes the next tokens of the sequences in the step that have drawn one
        before, and whether a stream waits: one of these, or one that is not in the step."""
        lengths = [
            len(s.token_ids)
            for s in self.turn
            if len(s.token_ids) + s.num_unknown > len(s.request.token_ids) and s.num_pending <= 1
        ]
        return Work(len(lengths), sum(lengths)), bool(lengths) or len(self.turn) < len(self.running)

    def vacate(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """Free a sequence's row and blocks, for good or until it resumes. Results of steps in
        flight for it are discarded."""
        row = sequence.held_row
        # First: it saves blocks of the row, and `groups.release` forgets both.
        self.store.vacate(sequence, resumes=resumes)
        self.store.sessions.note(sequence)
        for members in self.in_flight:
            if sequence in members:
                members[members.index(sequence)] = None
        sequence.is_verifying = False
        if sequence.arriving is not None:
            del self._arriving[sequence.arriving]
            sequence.arriving = None
        self.groups.release(sequence)
        self.adapters.release(sequence.adapter_slot)
        del self.running[row]
        self.accepted.pop(row, None)
        self.free.append(row)
        self.updates = [update for update in self.updates if update.row != row]
        sequence.row = None

    def check(self) -> None:
        """Check the invariants, for tests."""
        self.groups.check(self.running.values())
        rows = [*self.free, *(sequence.held_row for sequence in self.running.values())]
        assert sorted(rows) == list(range(len(rows))), "a row is lost or held twice"

    def take_news(self) -> tuple[list[BlockUpdate], list[Move], list[Copy]]:
        """Return what the next step tells the runner, and forget it."""
        taken = sum(self.accepted.values(), []) if self.accepted else []
        news = self.updates, self.moves, taken + self.copies
        self.updates, self.moves, self.copies, self.accepted = [], [], [], {}
        return news
