"""What the scheduler asks of a store of blocks, and tells it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from select import POLLIN, poll
from typing import TYPE_CHECKING

from attrs import define, field

from inferno.contracts import Mover, Placed, StoreIndex, Tier, TieredIndex
from inferno.request.requests import EngineStats
from inferno.stores.no_store import NoStore
from inferno.stores.speeds import Speeds

if TYPE_CHECKING:
    from inferno.core.kvcache import CacheGroup, CacheGroups, Match
    from inferno.core.types import Sequence as Sequence_
    from inferno.core.types import Step
    from inferno.stores.presence import Presence

_NAP = 0.05
"""Seconds after which an engine that waits for its store looks again."""


@define(eq=False)
class Storing(NoStore):
    """Blocks are saved once full, and a prefix that memory has lost is loaded at admission. Only
    what is near is loaded, in one step: a sequence for which more must come waits without a row."""

    groups: CacheGroups
    index: StoreIndex
    mover: Mover
    sizes: tuple[int, ...] = ()
    """Bytes of a block in each group. Without them, loading always pays."""
    speeds: Speeds = field(init=False)
    saves: list[Placed] = field(factory=list)
    """What the next step saves."""
    loads: list[Placed] = field(factory=list)
    fetching: dict[str, Sequence_] = field(factory=dict)
    _fetched: set[str] = field(factory=set)
    """Requests that are not set aside again before they have run."""
    _loading: list[str] = field(factory=list)
    """Requests that the next step loads blocks for."""
    _loaded: list[str] = field(factory=list)
    _saved: dict[int, int] = field(factory=dict)
    """By row, the number of leading blocks that were saved, or were there already."""
    _running: dict[int, Sequence_] = field(factory=dict)
    """By row, those whose last full block was not saved, as it may be superseded."""
    _waiting: dict[int, tuple[Sequence_, deque[Placed]]] = field(factory=dict)
    """By row, what later steps load."""
    _landed: list[Sequence_] = field(factory=list)
    _num_skipped: int = 0
    _tiers: Callable[[bytes], Mapping[Tier, int]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.speeds = Speeds(self.index.usage)
        self._tiers = self.index.tiers if isinstance(self.index, TieredIndex) else lambda key: {}

    @property
    def has_news(self) -> bool:  # type: ignore[override]  # `NoStore` never has any
        return bool(self.saves or self.loads or self._waiting)

    def extended(self, sequence: Sequence_, match: Match) -> Match | None:
        """Return the longest match that memory and what is near in the store have together, if
        loading it is faster than computing. None if more is there: the sequence is set aside until
        it has come near, or is lost."""
        owner, near = sequence.request.id, self.index.near
        if owner not in self._fetched:
            self._fetched.add(owner)
            whole = self._extended(sequence, match, self.index.groups_of)
            parts = [(sequence.keys[i], 1 << group.index) for i, group in self.missing(whole)]
            far = [(key, part) for key, part in parts if not near(key) & part]
            # Where other ranks must be asked for theirs, host memory may have what is far.
            read = [(key, part) for key, part in far if not self._tiers(key).get("host", 0) & part]
            if far and self._pays(match, whole, parts, read):
                self.index.fetch(parts, owner)
                sequence.num_far = len({key for key, _ in read}) * self.groups.block_size
                self.fetching[owner] = sequence
                return None
        whole = self._extended(sequence, match, near)
        parts = [(sequence.keys[i], 1 << group.index) for i, group in self.missing(whole)]
        if self._pays(match, whole, parts):
            return whole
        self._num_skipped += (whole.num_blocks - match.num_blocks) * self.groups.block_size
        return match

    def _pays(
        self,
        match: Match,
        whole: Match,
        parts: Iterable[tuple[bytes, int]],
        far: Iterable[tuple[bytes, int]] = (),
    ) -> bool:
        """Whether to load these parts, of which some are far, takes no longer than to compute what
        they add to a match."""
        if not self.sizes:
            return True
        sizes = [sum(self.sizes[bit.bit_length() - 1] for _, bit in each) for each in (parts, far)]
        num_tokens = (whole.num_blocks - match.num_blocks) * self.groups.block_size
        return self.speeds.pays(num_tokens, *sizes)

    def computed(self, step: Step, seconds: float) -> None:
        """Note how long a step took."""
        if step.slices:
            self.speeds.computed(step.num_tokens, seconds)

    def _extended(self, sequence: Sequence_, match: Match, has: Callable[[bytes], int]) -> Match:
        count = self._resumable(sequence, match.known, has)
        return match if count <= match.num_cached else match._replace(num_blocks=count, last=None)

    def _resumable(self, sequence: Sequence_, known: list[int], has: Callable[[bytes], int]) -> int:
        """Return how many leading blocks a sequence can resume after, with known blocks and what
        the store has."""
        stored = list[int]()
        for key in sequence.keys[: (len(sequence.token_ids) - 1) // self.groups.block_size]:
            stored.append(has(key))
            if not stored[-1] and len(stored) > len(known):
                break
        # As in `CacheGroups.resumable`: where one group can resume, another may not.
        count, before = len(stored), -1
        while count != before:
            before = count
            for group in self.groups.groups:
                while count > (index := _first_missing(group, known, stored, count)):
                    count = index
        return count

    def missing(self, match: Match) -> list[tuple[int, CacheGroup]]:
        """Return which parts of a match are not in memory, by the index of their block."""
        if match.num_blocks == match.num_cached:
            return []
        return [
            (i, group)
            for group in self.groups.groups
            for i in group.needs(match.num_blocks)
            if not is_held(group, match.known, i)
        ]

    def come(self) -> list[Sequence_]:
        """Return the sequences whose fetches have ended since."""
        ended = self.mover.poll()
        return [self.fetching.pop(owner) for owner in ended if owner in self.fetching]

    def load(
        self, sequence: Sequence_, missing: Iterable[tuple[int, CacheGroup]], *, alone: bool
    ) -> bool:
        """Load what was missing of the blocks that a sequence has resumed after. Returns whether
        the next step does all of it: else `landed` names the sequence once it can go on. Other
        sequences do not wait for a large load, if there are any."""
        places, count = dict[int, list[int | None]](), len(self.groups.groups)
        nbytes = 0
        for i, group in missing:
            if i not in places:
                places[i] = [None] * count
            places[i][group.index] = group.target(sequence, sequence.block_ids[i])
            nbytes += self.sizes[group.index] if self.sizes else 0
        self.index.touch(sequence.keys[: len(sequence.block_ids)])
        loads = {i: Placed(sequence.keys[i], tuple(at)) for i, at in places.items()}
        # What is near may make room until then, or go with another request, unless it is asked for.
        self.index.fetch([(each.key, each.groups) for each in loads.values()], sequence.request.id)
        budget = None if alone else self.speeds.budget()
        if budget is None or nbytes <= budget:
            self.loads += loads.values()
            self._loading.append(sequence.request.id)
            return True
        # At once what blocks lack that others can find: a place that they have looks like a part.
        cached = [i for i in loads if self.groups.parts_of(sequence.block_ids[i])]
        self.loads += [loads.pop(i) for i in cached]
        self._waiting[sequence.held_row] = sequence, deque(loads.values())
        return False

    def _nbytes(self, placed: Placed) -> int:
        return sum(
            size for size, at in zip(self.sizes, placed.places, strict=True) if at is not None
        )

    def _load_waiting(self) -> None:
        """Let the next step load its share of what waits, at least one block."""
        left = self.speeds.budget() or 0
        for row, (sequence, loads) in list(self._waiting.items()):
            while loads and (left > 0 or not self.loads):
                left -= self._nbytes(loads[0])
                self.loads.append(loads.popleft())
            if loads:
                return
            del self._waiting[row]
            self._loading.append(sequence.request.id)
            self._landed.append(sequence)

    def landed(self) -> list[Sequence_]:
        """Return the sequences whose last blocks a step loads that is planned: later ones find
        them."""
        landed, self._landed = self._landed, []
        return landed

    def save(self, sequence: Sequence_, count: int) -> None:
        """Save the leading `count` blocks of a sequence, as far as the store has not got them."""
        for placed in self._unsaved(sequence, count):
            self.saves.append(placed)
            # Before it is saved, so that no sequence saves it twice; `drop_news` drops it.
            self.index.note(placed)
        self._saved[sequence.held_row] = max(self._saved.get(sequence.held_row, 0), count)
        self._running[sequence.held_row] = sequence

    def _unsaved(self, sequence: Sequence_, count: int) -> Iterator[Placed]:
        """Return the parts of the leading blocks that memory has and the store has not."""
        for i in range(self._saved.get(sequence.held_row, 0), count):
            key, block = sequence.keys[i], sequence.block_ids[i]
            known = self._needless(key)
            places = [None if known >> g.index & 1 else g.part(block) for g in self.groups.groups]
            if any(place is not None for place in places):
                yield Placed(key, tuple(places))

    def _needless(self, key: bytes) -> int:
        """Return the groups whose parts of a block need not be saved."""
        return self.index.groups_of(key)

    def vacate(self, sequence: Sequence_, *, resumes: bool = False) -> None:
        """Save what is left of a sequence that loses its row. One that resumes will save it again
        at its end: until then it is saved only where that is faster than computing it again."""
        self._waiting.pop(sequence.held_row, None)
        self._landed = [each for each in self._landed if each is not sequence]
        if not resumes or self._worth_saving(sequence):
            self.save(sequence, sequence.num_inserted)
        self.index.touch(sequence.keys[: sequence.num_inserted])
        self._saved.pop(sequence.held_row, None)
        self._running.pop(sequence.held_row, None)
        self.release(sequence.request.id)

    def _worth_saving(self, sequence: Sequence_) -> bool:
        """Whether to save what is left, and to load it, takes no longer than to compute what the
        sequence could not resume after without it."""
        if not self.sizes:
            return True
        nbytes = sum(map(self._nbytes, self._unsaved(sequence, sequence.num_inserted)))
        size = self.groups.block_size
        count = min(sequence.num_inserted, (len(sequence.token_ids) - 1) // size)
        without = self._resumable(sequence, [], self.index.groups_of)
        return self.speeds.pays_to_save(max(0, count - without) * size, nbytes)

    def take_news(self) -> tuple[tuple[Placed, ...], tuple[Placed, ...]]:
        """Return what the next step saves and loads, and forget it."""
        for owner in self._loaded:  # by the step before this one
            if owner not in self._loading and owner not in self.fetching:
                self.index.release(owner)
        if self._waiting:
            self._load_waiting()
        news = tuple(self.saves), tuple(self.loads)
        self.saves, self.loads = [], []
        self._loaded, self._loading = self._loading, []
        return news

    def take_last(self) -> tuple[Placed, ...]:
        """Return what the last step saves, before the cache's memory goes."""
        for sequence in [*self._running.values()]:
            self.save(sequence, sequence.num_inserted)
        return self.take_news()[0]

    def drop_news(self) -> bool:
        """Forget what was to be saved and loaded: the step does not come, and what earlier ones
        were to load may not have been. Returns whether cached blocks may lack it."""
        for placed in self.take_news()[0]:
            self.index.drop(placed.key)
        return True

    def forget(self, sequence: Sequence_) -> None:
        """Let the store have nothing of a sequence whose numbers are none."""
        # So that `vacate` saves nothing of it either.
        self._saved[sequence.held_row] = len(sequence.keys)
        self.drop(set(sequence.keys))

    def drop(self, keys: Collection[bytes]) -> None:
        """Let the store have nothing of these blocks, but those that running sequences wait for."""
        self.saves = [placed for placed in self.saves if placed.key not in keys]
        awaited = {placed.key for _, loads in self._waiting.values() for placed in loads}
        for key in keys:
            if key not in awaited:
                self.index.drop(key)

    def release(self, owner: str) -> None:
        """Forget a request, which runs no more or is dropped."""
        self.fetching.pop(owner, None)
        self._fetched.discard(owner)
        if owner in self._loading:
            return  # the step that is being planned needs it: `take_news` releases it later
        if owner in self._loaded:
            self._loaded.remove(owner)  # not later: another request may have this id by then
        self.index.release(owner)

    def watch(self, presence: Presence) -> None:
        """Tell from now on which blocks its tiers have."""
        if isinstance(self.index, TieredIndex):
            presence.tiers_of, presence.is_kept = self.index.tiers, self.index.groups_of
            self.index.watch(presence.moved)

    def gauge(self, stats: EngineStats) -> None:
        """Write what the store holds and has done."""
        super().gauge(stats)
        usage = self.index.usage
        stats.store_host_bytes, stats.store_folder_bytes = usage.host_bytes, usage.folder_bytes
        stats.store_saved_bytes = usage.saved_bytes
        stats.store_loaded_bytes, stats.store_lost_parts = usage.loaded_bytes, usage.lost_parts
        stats.store_skipped_tokens = self._num_skipped

    @property
    def waits_for(self) -> int | None:
        """The mover's descriptor, if a fetch has not ended."""
        return self.mover.fileno() if self.fetching else None

    def sleep(self) -> None:
        """Wait until a fetch may have ended, or a moment."""
        poller = poll()  # as `select` refuses descriptors above 1023
        if (descriptor := self.mover.fileno()) is not None:
            poller.register(descriptor, POLLIN)
        poller.poll(1000 * _NAP)

    def close(self) -> None:
        self.mover.close()


def is_held(group: CacheGroup, known: list[int], index: int) -> bool:
    """Whether memory has a group's part of a block of a match."""
    return index < len(known) and group.part(known[index]) is not None


def _first_missing(group: CacheGroup, known: list[int], stored: list[int], count: int) -> int:
    """Return the first block of a prefix of `count` whose part neither memory nor the store has."""
    for index in group.needs(count):
        if not (stored[index] >> group.index & 1 or is_held(group, known, index)):
            return index
    return count
