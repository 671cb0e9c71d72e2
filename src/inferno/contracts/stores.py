"""Stores of blocks: where the cache's blocks are kept beside its memory, and come back from.

A store has two halves. The scheduler asks the `StoreIndex`, which knows no tensors; the runner has
the `Mover` copy bytes. A block has a content key (`PrefixCache`), and a part in each cache group:
a store has it of some groups and not of others, which is written as a set of bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from attrs import define, field, frozen

from inferno.contracts import lazy
from inferno.contracts.cache_events import Tier
from inferno.contracts.links import Link
from inferno.request.linked import LinkedInstance

if TYPE_CHECKING:
    from torch import Tensor


class Placed(NamedTuple):
    """Parts of a block: where the cache has them, or is to have them."""

    key: bytes
    """Its content key."""
    places: tuple[int | None, ...]
    """Its place in each cache group; None: not this part."""

    @property
    def groups(self) -> int:
        """The groups of its parts, as a set of bits."""
        groups = 0  # a loop, as it is faster: a prompt has hundreds of blocks, and a step waits
        for i, place in enumerate(self.places):
            if place is not None:
                groups |= 1 << i
        return groups


@define
class StoreUsage:
    """What a store holds now, and what it has done since it was built."""

    host_bytes: int = 0
    folder_bytes: int = 0
    saved_bytes: int = 0
    """Copied out of the cache."""
    loaded_bytes: int = 0
    """Copied into it."""
    copy_seconds: float = 0.0
    """How long these copies took. With them, the engine estimates what loading costs."""
    fetched_bytes: int = 0
    """Brought near."""
    fetch_seconds: float = 0.0
    """How long that took."""
    lost_parts: int = 0
    """Parts of blocks that were missing or damaged when they were wanted."""
    linked_prompts: int = 0
    """Prompts that were sent to another instance, or computed for one."""
    linked_bytes: int = 0
    """Bytes of blocks that came from it, or went to it."""
    fallbacks: dict[str, int] = field(factory=dict)
    """By cause, prompts that were worth to be sent out, and were computed here in the end."""
    instances: dict[str, LinkedInstance] = field(factory=dict)
    """By their addresses, those that compute prompts for this one."""


class StoreIndex(Protocol):
    """What a store has. Used by the engine's thread only."""

    @property
    def usage(self) -> StoreUsage:
        """What it holds now, and what it has done since it was built."""
        ...

    def groups_of(self, key: bytes) -> int:
        """Return the groups whose parts of a block are in the store, as a set of bits."""
        ...

    def near(self, key: bytes) -> int:
        """Return those whose bytes are in host memory: only these can be loaded."""
        ...

    def note(self, placed: Placed) -> None:
        """Note that the next step saves these parts. Those that the store already has stay as they
        are."""
        ...

    def drop(self, key: bytes) -> None:
        """Forget a block, in every tier: its content is wrong."""
        ...

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark blocks as used now, first to last, for the order in which they make room."""
        ...

    def fetch(self, wanted: Sequence[tuple[bytes, int]], owner: str) -> None:
        """Bring parts of blocks near. Does not wait: `Mover.poll` names the owner once all of them
        are near or turned out to be lost. They stay near until `release`."""
        ...

    def pin(self, keys: Sequence[bytes], owner: str, until: float) -> int:
        """Let these blocks make room last, until a time (`time.time`) or `release`. A pin is soft:
        it reserves nothing. Returns how many leading ones the store has."""
        ...

    def release(self, owner: str) -> None:
        """End an owner's pins and fetches."""
        ...


@runtime_checkable
class TieredIndex(Protocol):
    """What an index may offer besides: which tier has what, for events of the cache."""

    def tiers(self, key: bytes) -> Mapping[Tier, int]:
        """Return the groups whose parts of a block each tier has, as sets of bits."""
        ...

    def watch(self, changed: Callable[[bytes], object]) -> None:
        """Call `changed` with the key of every block there is now, and whenever `tiers` of one may
        have changed. Called once."""
        ...


class Mover(Protocol):
    """Copies bytes between the cache and the store. Its methods are called by the engine's thread,
    and return without waiting for files or networks."""

    def register(self, groups: Sequence[Sequence[Tensor]]) -> None:
        """Take the cache: for each group, tensors of bytes (places, bytes of one). Called once."""
        ...

    def save(self, saves: Sequence[Placed]) -> None:
        """Copy parts out of the cache, before a step that may overwrite them."""
        ...

    def load(self, loads: Sequence[Placed]) -> None:
        """Copy parts that are near into the cache, before a step that reads them."""
        ...

    def poll(self) -> Sequence[str]:
        """Take what has happened since: blocks that came near or are lost. Returns the owners whose
        fetches have ended: none once it is closed."""
        ...

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `poll` has something to say; None if there
        never is."""
        ...

    def close(self) -> None:
        """Finish what is being written. The index cannot be used any more."""
        ...


@frozen(kw_only=True)
class StoreNeed:
    """What a store is built for."""

    layout: str
    """Everything that the bytes of a block depend on, as a JSON object. Blocks of another layout
    must never be loaded."""
    sizes: tuple[int, ...]
    """Bytes of a block in each cache group, or of a snapshot of states; 0: the layers of this
    process have none. Such parts are kept as any: other processes have them too."""
    folder: Path | None = None
    """Where to keep blocks on disk; None: nowhere."""
    folder_limit: int = 0
    """Bytes of all files in it."""
    beside: tuple[Path, ...] = ()
    """Folders of other processes with blocks of this layout, that a store with a folder may read
    and never change: what they have is as good as what it has."""
    former: tuple[Path, ...] = ()
    """Folders of processes that an earlier start had and this one has not. A store with a folder
    removes layouts in them as it does in its folder: those used longest ago make room."""
    host_limit: int = 0
    """Bytes of blocks to keep in host memory, beside those that are on their way."""
    link: Link | None = None
    """For a store that links instances: its end. None: a store that keeps blocks is asked for."""


@frozen(kw_only=True)
class StoredLayout:
    """What a folder has of one layout."""

    path: Path
    """Where."""
    layout: str
    """As it was given in `StoreNeed`; empty if it cannot be read."""
    nbytes: int
    """Bytes of all its files."""
    used: float
    """When a block of it was last saved or loaded (`time.time`)."""


@frozen(kw_only=True)
class BlockStore:
    """A kind of store. The one with the highest priority that does not refuse is used."""

    name: str
    build: Callable[[StoreNeed], tuple[StoreIndex, Mover]] = field(converter=lazy.function)
    """build(need) -> its halves. Raises OptionError if the folder cannot be used."""
    refuses: Callable[[StoreNeed], str | None] = lambda need: None
    """refuses(need) -> why it cannot serve, or None. `layout` is empty then. Imports no torch."""
    survey: Callable[[Path], Sequence[StoredLayout]] | None = field(
        default=None, converter=lazy.optional
    )
    """survey(folder) -> the layouts whose blocks are there, for `inferno explain`: none if there is
    no such folder. Reads no block, changes nothing, and imports no torch. None: it cannot tell."""
    links: bool = False
    """Whether it links instances instead of keeping blocks: its index is a `LinkIndex`."""
    priority: int = 0
    api_version: int = 1
