"""A tier of blocks in host memory, and one on disk behind it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field
from torch import Tensor

from inferno.contracts import Mover, Placed, StoreIndex, StoreNeed, StoreUsage, Tier
from inferno_offload.beside import Beside, Others
from inferno_offload.copying import GroupCopies
from inferno_offload.files import Fetched, Files, Written
from inferno_offload.folder import Folder
from inferno_offload.index import Part, Place
from inferno_offload.parts import Read, Write, groups_in, in_group, parts_of
from inferno_offload.pins import Pins
from inferno_offload.slots import BURST, SPARE, Buffer, Slots

SAVED_AT_ONCE = 8 << 20
"""Bytes that are copied before they begin to be written to disk."""
MOST_LOOKS = 4096
"""Pinned parts that are passed over, as if they were used now, before one of them makes room."""


def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
    """Return a store as its index and as its mover. Raises OptionError if its folder cannot be
    used."""
    store = Store(need)
    if need.folder is not None:
        given = need.layout, need.sizes, need.folder_limit
        store.use(Folder.open(need.folder, *given, need.former))
        store.others.folders += [Beside.of(parent, *given) for parent in need.beside]
        store.others.look()
    return store, store


@define(eq=False)
class Store:
    """Both halves of the store. Parts are in host memory while they are written or wanted, and as
    long after that as there is room for them; on disk until there is no more room."""

    need: StoreNeed
    files: Files | None = None
    """None: there is no disk tier."""
    on_disk: dict[Part, Place] = field(factory=dict)
    """Parts that are in the folder, used longest ago first."""
    others: Others = field(factory=Others)
    """What other processes have on disk."""
    usage: StoreUsage = field(factory=StoreUsage)
    _groups: dict[bytes, int] = field(factory=dict)
    """By key, the groups in any of its tiers."""
    _host: dict[Part, Buffer] = field(factory=dict)
    _idle: dict[Part, None] = field(factory=dict)
    """Parts in host memory that nothing needs there, used longest ago first."""
    _idle_bytes: int = 0
    _folder: Folder | None = None
    _writing: dict[Part, Write] = field(factory=dict)
    _reading: dict[Part, set[str]] = field(factory=dict)
    """Parts that are read from disk, and whose fetches wait for them."""
    _waiting: Counter[str] = field(factory=Counter)
    """By owner, how many parts its fetch waits for."""
    _ended: list[str] = field(factory=list)
    _holders: Counter[Part] = field(factory=Counter)
    _held: dict[str, list[Part]] = field(factory=dict)
    _pins: Pins = field(factory=Pins)
    _copies: list[GroupCopies] = field(factory=list)
    _slots: list[Slots] = field(init=False)
    _trims: bool = False
    """Whether buffers were given back whose memory the system is to have."""
    _lent: set[Buffer] = field(factory=set)
    """Buffers that a thread writes to disk: nothing else may be written to them."""
    _changed: Callable[[bytes], object] = lambda key: None

    def __attrs_post_init__(self) -> None:
        count = self.need.host_limit + SPARE
        self._slots = [Slots.of(size, count, count + BURST) for size in self.need.sizes]

    def use(self, folder: Folder) -> None:
        """Take a folder as the disk tier."""
        self._folder, self.files, self.on_disk = folder, Files(folder.parts), folder.places
        for part in self.on_disk:
            self.add(part)
            self.usage.folder_bytes += folder.parts.extent(part)

    # --- StoreIndex -------------------------------------------------------------------------------

    def groups_of(self, key: bytes) -> int:
        return self._groups.get(key, 0) | self.others.groups_of(key)

    def near(self, key: bytes) -> int:
        return groups_in(self._host, key, len(self.need.sizes))

    def tiers(self, key: bytes) -> Mapping[Tier, int]:
        near = self.near(key) if self.need.host_limit else 0  # else parts are only on their way
        far = groups_in(self.on_disk, key, len(self.need.sizes))
        return {"host": near, "disk": far | self.others.groups_of(key)}

    def watch(self, changed: Callable[[bytes], object]) -> None:
        self._changed = changed
        for key in {*self._groups}.union(*(each.groups for each in self.others.folders)):
            changed(key)

    def note(self, placed: Placed) -> None:
        for part in parts_of(placed.key, placed.groups):
            self.add(part)

    def drop(self, key: bytes) -> None:
        for part in parts_of(key, self._groups.get(key, 0)):
            self._remove_file(part)
            self._forget(part)
        self.others.drop(key)
        self._changed(key)

    def touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):  # the end of a prefix makes room before its beginning
            for part in parts_of(key, self._groups.get(key, 0)):
                if part in self._idle:
                    self._idle[part] = self._idle.pop(part)
                if part in self.on_disk:
                    self.on_disk[part] = self.on_disk.pop(part)

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        parts = [part for key, groups in wanted for part in parts_of(key, groups)]
        reads, host, holders, awaited = list[Read](), self._host, self._holders, 0
        if not all(part in host or self._on_disk(part) for part in parts):
            self._look(None)
        self._held.setdefault(owner, []).extend(parts)
        for part in parts:  # hundreds: `+= 1` would call `Counter.__missing__` for each
            holders[part] = holders.get(part, 0) + 1
            if part in host:
                self._not_idle(part)
            elif self.files is not None and (location := self._on_disk(part)) is not None:
                if (owners := self._reading.get(part)) is None:
                    if location[1] is None:
                        self.on_disk[part] = self.on_disk.pop(part)  # used now
                    reads.append(Read(part, location[0], self._slots[part[1]].take(), location[1]))
                    self._reading[part] = owners = set()
                if owner not in owners:
                    owners.add(owner)
                    awaited += 1
            else:
                self._lose(part)
        self._waiting[owner] += awaited
        for source in (None, *self.others.folders) if reads else ():
            if self.files is not None and (own := [r for r in reads if r.source is source]):
                self.files.read(own, source.parts if source is not None else None)
        if not self._waiting[owner]:
            self._end(owner)

    def _on_disk(self, part: Part) -> tuple[Place, Beside | None] | None:
        """Return where a part is on disk, and in whose file: of this process rather than others."""
        if (place := self.on_disk.get(part)) is not None:
            return place, None
        return self.others.find(part)

    def _look(self, call: Callable[[Callable[[], object]], object] | None) -> None:
        """See what other processes have written."""
        for key in self.others.look(call):
            self._changed(key)

    def pin(self, keys: Sequence[bytes], owner: str, until: float) -> int:
        count = next((i for i, key in enumerate(keys) if not self.groups_of(key)), len(keys))
        self._pins.set(owner, keys[:count], until)
        return count

    def release(self, owner: str) -> None:
        self._pins.end(owner)
        self._waiting.pop(owner, None)
        for part in self._held.pop(owner, ()):
            self._holders[part] -= 1
            if not self._holders[part]:
                del self._holders[part]
                self._make_idle(part)

    # --- Mover ------------------------------------------------------------------------------------

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._copies = [
            GroupCopies(pieces, slots) for pieces, slots in zip(groups, self._slots, strict=True)
        ]
        if self.files is not None:
            self.files.register(groups)

    def save(self, saves: Sequence[Placed]) -> None:
        started = time.perf_counter()
        for group, copies in enumerate(self._copies):
            wanted = [each for each in in_group(saves, group) if (each[0], group) not in self._host]
            count = max(1, SAVED_AT_ONCE // max(1, self.need.sizes[group]))
            for i in range(0, len(wanted), count):
                self._save(group, copies, wanted[i : i + count])
        self.usage.copy_seconds += time.perf_counter() - started

    def _save(self, group: int, copies: GroupCopies, wanted: Sequence[tuple[bytes, int]]) -> None:
        parts = copies.out([place for _, place in wanted])
        for (key, _), data in zip(wanted, parts, strict=True):
            part = key, group
            self._host[part] = data
            self.add(part)
            self.usage.saved_bytes += data.nbytes
            self.usage.host_bytes += data.nbytes
            self._changed(key)
            if part not in self.on_disk:
                self._write(part, data)
            self._make_idle(part)

    def load(self, loads: Sequence[Placed]) -> None:
        started = time.perf_counter()
        for group, copies in enumerate(self._copies):
            if wanted := in_group(loads, group):
                parts = [self._host[key, group] for key, _ in wanted]
                copies.into([place for _, place in wanted], parts)
                self.usage.loaded_bytes += sum(part.nbytes for part in parts)
        self.usage.copy_seconds += time.perf_counter() - started

    def poll(self) -> Sequence[str]:
        for report in self.files.take() if self.files is not None else ():
            if isinstance(report, Written):
                self._written(report)
            else:
                self._fetched(report)
        if self.files is not None:
            self._look(self.files.call)
        self._make_room()
        self._trim()
        ended, self._ended = self._ended, []
        return ended

    def fileno(self) -> int | None:
        return self.files.descriptor if self.files is not None else None

    def close(self) -> None:
        if self.files is not None:
            self.files.finish()
            self.poll()  # what the index does not have yet
            self.files.close()
            self.files = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    # --- tiers ------------------------------------------------------------------------------------

    def add(self, part: Part) -> None:
        """Note that a part is in a tier, or is about to be."""
        key, group = part
        self._groups[key] = self._groups.get(key, 0) | 1 << group

    def _write(self, part: Part, data: Buffer) -> None:
        """Write a part to disk, if there is room, or if others make room for it."""
        if self.files is None or self._folder is None or not self.files.accepts(data.nbytes):
            return
        size = self._folder.parts.extent(part)
        while (offset := self._folder.free.take(size)) is None:
            if not self.on_disk:
                return
            other = self._least_useful(self.on_disk)
            self._remove_file(other)
            if other not in self._host:
                self._forget(other)
        self._writing[part] = write = Write(part, offset, data)
        self._lent.add(data)
        self.files.write(write)

    def _written(self, report: Written) -> None:
        part, buffer = report.write.part, report.write.buffer
        if self.files is not None:
            self.files.queued -= buffer.nbytes
        self._lent.discard(buffer)
        if self._host.get(part) is not buffer:
            self._give(part[1], buffer)
        if self._writing.get(part) is not report.write:  # it was dropped
            return
        del self._writing[part]
        if report.place is not None:
            self.on_disk[part] = report.place
            self.usage.folder_bytes += self._extent(part)
        elif self._folder is not None:  # the index has nothing of it to remove
            self._folder.free.give(report.write.offset, self._extent(part))
        self._changed(part[0])
        self._make_idle(part)

    def _fetched(self, report: Fetched) -> None:
        part, buffer, source = report.read.part, report.read.buffer, report.read.source
        owners = self._reading.pop(part, set())
        self.usage.fetched_bytes += buffer.nbytes
        self.usage.fetch_seconds += report.seconds
        whole = report.whole and (source is not None or part in self.on_disk)
        if source is not None:
            self.add(part)  # while it is in host memory, if it comes there
        if whole and part not in self._host:
            self._host[part] = buffer
            self.usage.host_bytes += buffer.nbytes
            self._changed(part[0])
            self._make_idle(part)
        else:
            self._give(part[1], buffer)
        if not whole:
            if source is None:
                self._remove_file(part)
            else:
                source.forget(part)
            if part not in self._host:
                self._lose(part)
        for owner in owners:
            if owner in self._waiting:
                self._waiting[owner] -= 1
                if not self._waiting[owner]:
                    self._end(owner)

    def _end(self, owner: str) -> None:
        self._waiting.pop(owner, None)
        self._ended.append(owner)
        if self.files is not None:
            self.files.signal()

    def _lose(self, part: Part) -> None:
        """Forget a part that was expected and is not there, or is not what was saved."""
        if self._groups.get(part[0], 0) >> part[1] & 1:
            self.usage.lost_parts += 1
        self._forget(part)

    def _forget(self, part: Part) -> None:
        key, group = part
        self._changed(key)
        self._not_idle(part)
        if part in self._host:
            self._let_go(part)
        if groups := self._groups.get(key, 0) & ~(1 << group):
            self._groups[key] = groups
        else:
            self._groups.pop(key, None)

    def _remove_file(self, part: Part) -> None:
        if part in self.on_disk:
            self.usage.folder_bytes -= self._extent(part)
        place = self.on_disk.pop(part, None) or self._writing.pop(part, None)
        if place is not None and self._folder is not None and self.files is not None:
            self._folder.free.give(place.offset, self._extent(part))
            self.files.remove(part)
        self._changed(part[0])

    def _extent(self, part: Part) -> int:
        return self._folder.parts.extent(part) if self._folder is not None else 0

    def _let_go(self, part: Part) -> None:
        """Remove a part from host memory."""
        buffer = self._host.pop(part)
        self.usage.host_bytes -= buffer.nbytes
        if buffer not in self._lent:
            self._give(part[1], buffer)
        self._changed(part[0])

    def _give(self, group: int, buffer: Buffer) -> None:
        """Give a buffer back to its group."""
        self._trims |= self._slots[group].give(buffer)

    def _trim(self) -> None:
        """Let the system have memory that is not kept: by the thread that writes, if there is one,
        as steps do not wait for that."""
        if not self._trims:
            return
        self._trims = False
        for slots in self._slots:
            if self.files is None:
                slots.trim()
            else:
                self.files.trim(slots)

    def _make_idle(self, part: Part) -> None:
        busy = part in self._writing or part in self._holders or part in self._idle
        if part in self._host and not busy:
            self._idle[part] = None
            self._idle_bytes += self._host[part].nbytes

    def _not_idle(self, part: Part) -> None:
        if part in self._idle:
            del self._idle[part]
            self._idle_bytes -= self._host[part].nbytes

    def _make_room(self) -> None:
        """Let the parts go that were used longest ago, until host memory has its size."""
        while self._idle_bytes > self.need.host_limit:
            part = self._least_useful(self._idle)
            self._not_idle(part)
            if part in self.on_disk:
                self._let_go(part)
            else:
                self._forget(part)

    def _least_useful(self, parts: dict[Part, None] | dict[Part, Place]) -> Part:
        self._pins.expire()
        for _ in range(min(len(parts), MOST_LOOKS)):
            part = next(iter(parts))
            if part[0] not in self._pins.counts:
                return part
            parts[part] = parts.pop(part)  # type: ignore[assignment]  # its own value
        return next(iter(parts))
