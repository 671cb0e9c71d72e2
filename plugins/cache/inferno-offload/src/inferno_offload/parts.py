"""The file of a layout's parts, one after another, and its index."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

import xxhash
from attrs import define, field, frozen

from inferno_offload.extents import Extents
from inferno_offload.index import (
    ENTRY_BYTES,
    Change,
    Index,
    Part,
    Place,
    read_all,
    write_all,
    write_out,
)

if TYPE_CHECKING:  # a survey of folders needs no torch
    from inferno.contracts import Placed
    from inferno_offload.slots import Buffer

PAGE = 4096
_ALIGNED = 16 * PAGE
"""Parts of so many bytes begin with a page: else a page that two of them share must be read before
one of them is written."""
AT_ONCE = 1 << 20
"""Bytes of one call. Linux takes twice as long for writes of several MiB."""
_MOST_BUFFERS = 512
"""Buffers of one call: systems allow 1024."""
QUIET = 3600.0
"""Seconds between two warnings that the disk cannot be written."""

log = logging.getLogger("inferno.store")


@frozen(eq=False)
class Write:
    """A part that is to be written."""

    part: Part
    offset: int
    buffer: Buffer


@frozen(eq=False)
class Read:
    """A part that is to be read into a buffer."""

    part: Part
    place: Place
    buffer: Buffer
    source: Source | None = None
    """Whose file it is in; None: this process's."""

    @property
    def offset(self) -> int:
        return self.place.offset


class Source(Protocol):
    """Another process's file of parts, and what is known of it."""

    parts: PartsFile

    def forget(self, part: Part) -> None:
        """Forget a part that is not whole."""


_Moved = TypeVar("_Moved", Write, Read)


@define(eq=False)
class PartsFile:
    """Bytes of parts at offsets that the caller gives out, in one file of constant extents for each
    group. All that is read is compared with its checksum: what a crash or another program has left
    is lost, never wrong."""

    sizes: tuple[int, ...]
    """Bytes of a part, by group."""
    limit: int
    """Bytes that this file may have, beside its index."""
    _path: Path
    _descriptor: int
    _index: Index
    _extents: tuple[int, ...] = field(init=False)
    _unnoted: list[Change] = field(factory=list, init=False)
    """Removals that the index has no room for yet."""
    _quiet: float = field(default=-inf, init=False)
    """Until when no warning is logged again (`monotonic`)."""

    def __attrs_post_init__(self) -> None:
        self._extents = tuple(map(extent, self.sizes))

    @classmethod
    def open(cls, folder: Path, layout: str, sizes: tuple[int, ...], limit: int) -> PartsFile:
        """Open or make the two files in `folder`. Raises OSError."""
        folder.mkdir(exist_ok=True, mode=0o700)
        least = min((extent(size) for size in sizes if size), default=1)
        entries = 1 + sizes.count(0)  # of a block: parts without bytes are noted too
        most = limit // (least + 2 * entries * ENTRY_BYTES)  # with an index that is written anew
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        seed = xxhash.xxh3_64_intdigest(layout.encode())
        index = Index(folder / "index", seed, 2 * entries * most)
        path = folder / "parts"
        return cls(sizes, most * least, path, os.open(path, flags, 0o600), index)

    def extent(self, part: Part) -> int:
        """Return the bytes that a part takes of the file."""
        return self._extents[part[1]]

    def recover(self) -> tuple[dict[Part, Place], Extents]:
        """Return the parts there are, used longest ago first, and what is free beside them. Removes
        what a crash has left behind. Raises OSError."""
        index, size = self._index.read(), os.fstat(self._descriptor).st_size
        rank = {part: i for i, part in enumerate(index)}
        survivors = dict[Part, Place]()
        last, end = None, 0
        for part, place in sorted(index.items(), key=lambda item: (item[1].offset, rank[item[0]])):
            if part[1] >= len(self.sizes):
                continue
            stop = place.offset + self.extent(part)
            nbytes = self.sizes[part[1]]
            if (nbytes and place.offset + nbytes > size) or stop > self.limit:
                continue
            if last is not None and place.offset < end:  # the system has lost what was between
                if rank[last] > rank[part]:
                    continue
                del survivors[last]
            survivors[part] = place
            last, end = part, stop
        used = [(place.offset, self.extent(part)) for part, place in survivors.items()]
        free = Extents.without(used, self.limit)
        places = {part: survivors[part] for part in index if part in survivors}
        try:
            self.write_index(places, free.end)
        except OSError as error:  # no room for a new index beside the old one
            self._tell(error)
            self._index.keep()
        return places, free

    def write_index(self, places: dict[Part, Place], end: int) -> None:
        """Write the index anew, in order, and let the file end where the last extent does. Raises
        OSError."""
        self._index.write(places.items())
        if os.fstat(self._descriptor).st_size > end:
            os.ftruncate(self._descriptor, end)

    def write(
        self, work: Sequence[Write | Part], rest: Callable[[], object] = lambda: None
    ) -> list[tuple[Write, Place | None]]:
        """Write parts, and note those that were removed, in order; `rest` is called after each few.
        Returns where they are; None: they could not be written."""
        writes = [each for each in work if isinstance(each, Write)]
        # Their extents may be written to below: a process that is killed there leaves no entry of
        # bytes that are another's.
        removals = [*self._unnoted, *(Change(e, None) for e in work if not isinstance(e, Write))]
        if not self._note(removals):
            self._unnoted = removals
            return [(each, None) for each in writes]
        self._unnoted = []
        places = dict[Write, Place | None]()
        for together in _together(writes, AT_ONCE):
            places |= self._write(together)
            nbytes = sum(each.buffer.nbytes for each in together)
            write_out(self._descriptor, together[0].offset, nbytes)
            rest()
        changes, written = list[Change](), set[Part]()
        for each in work:
            if not isinstance(each, Write):
                if each in written:  # and removed after that
                    changes.append(Change(each, None))
            elif place := places[each]:
                changes.append(Change(each.part, place))
                written.add(each.part)
        if not self._note(changes):
            self._unnoted = [change for change in changes if change.place is None]
            places = dict.fromkeys(places, None)
        return list(places.items())

    def _note(self, changes: Sequence[Change]) -> bool:
        """Append changes to the index. Returns whether it has them all."""
        try:
            self._index.append(changes)
        except OSError as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: OSError) -> None:
        """Warn that something could not be written, unless that was done a short while ago."""
        if monotonic() > self._quiet:
            self._quiet = monotonic() + QUIET
            why = error.strerror or error
            log.warning("%s cannot be written: %s; some blocks are not kept", self._path, why)

    def _write(self, work: Sequence[Write]) -> dict[Write, Place | None]:
        bodies = [each.buffer.body for each in work]
        try:
            whole = self._write_bodies(bodies, work[0].offset)
        except OSError as error:
            self._tell(error)
            whole = False
        return {
            each: Place(each.offset, self._checksum(each.part, body)) if whole else None
            for each, body in zip(work, bodies, strict=True)
        }

    def _write_bodies(self, bodies: list[memoryview], offset: int) -> bool:
        if len(bodies) > 1:
            return write_all(self._descriptor, bodies, offset) == sum(map(len, bodies))
        body = bodies[0]
        for at in range(0, len(body), AT_ONCE):
            piece = body[at : at + AT_ONCE]
            if write_all(self._descriptor, [piece], offset + at) < len(piece):
                return False
        return True

    def read(self, lists: Iterable[Sequence[Read]]) -> Iterator[list[bool]]:
        """Read lists of neighbours, in the order of the file. Yields of each part whether it is
        whole: else it is missing, damaged, or another's."""
        # Each reader has a descriptor: Linux reads ahead, and in large pages, where one goes on.
        # Advice to read all of it (WILLNEED) takes three times as long, as pages are small then.
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield from ([False] * len(work) for work in lists)
            return
        try:
            for work in lists:
                yield self._read(descriptor, work)
            with suppress(OSError):
                self._index.touch()
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, work: Sequence[Read]) -> list[bool]:
        bodies = [each.buffer.body for each in work]
        try:
            read_all(descriptor, bodies, work[0].offset)
        except OSError:
            return [False] * len(work)
        return [
            self._checksum(each.part, body) == each.place.checksum
            for each, body in zip(work, bodies, strict=True)
        ]

    def together(self, work: Iterable[Read]) -> Iterator[list[Read]]:
        """Divide parts into neighbours that one call reads."""
        return _together(sorted(work, key=lambda each: each.place), AT_ONCE)

    def close(self) -> None:
        self._index.close()
        os.close(self._descriptor)

    def _checksum(self, part: Part, body: memoryview) -> int:
        """Of the bytes and of what they are: those of another part are damaged too."""
        name = part[0] + part[1].to_bytes(4, "little")
        seed = xxhash.xxh3_64_intdigest(name, seed=self._index.seed)
        return xxhash.xxh3_64_intdigest(body, seed=seed)


def extent(size: int) -> int:
    """Return the bytes that a part of so many takes of a file."""
    return -(-size // PAGE) * PAGE if size >= _ALIGNED else max(1, size)


def _together(work: Iterable[_Moved], most: int) -> Iterator[list[_Moved]]:
    """Divide parts into neighbours in order, each list of at most so many bytes, or of one part."""
    batch, end, left = list[_Moved](), 0, most
    for each in work:
        nbytes = each.buffer.nbytes
        if batch and (each.offset != end or nbytes > left or len(batch) == _MOST_BUFFERS):
            yield batch
            batch, left = [], most
        batch.append(each)
        end, left = each.offset + nbytes, left - nbytes
    if batch:
        yield batch


def groups_in(tier: Container[Part], key: bytes, count: int) -> int:
    """Return which of `count` groups a tier has of a block, as a set of bits. A step asks of each
    block of a prompt: a loop takes a fifth of a sum over a generator."""
    groups = 0
    for group in range(count):
        if (key, group) in tier:
            groups |= 1 << group
    return groups


def parts_of(key: bytes, groups: int) -> list[Part]:
    """Return the parts of a block in a set of groups."""
    return [(key, group) for group in _numbers_of(groups)]


@cache
def _numbers_of(groups: int) -> tuple[int, ...]:
    return tuple(group for group in range(groups.bit_length()) if groups >> group & 1)


def in_group(blocks: Sequence[Placed], group: int) -> list[tuple[bytes, int]]:
    """Return the keys and places of the blocks that have a part in a group."""
    placed = [(block.key, block.places[group]) for block in blocks]
    return [(key, place) for key, place in placed if place is not None]
