"""What every cache group is asked. `full`, `window` and `state` are the kinds that plans have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from inferno.core.types import BlockUpdate, Copy, Sequence

IsCached = Callable[[int], bool]
"""Whether the prefix cache has a block."""
UNLIMITED = sys.maxsize


class CacheGroup(Protocol):
    """What one group of layers keeps of the blocks of tokens.

    To a group a block is a name: `CacheGroups` counts which sequences use it, and the prefix cache
    knows its content. The group decides what is stored under the name and where: a block's *place*
    is an index into the tensors of the group's layers. What it needs to know of a running sequence
    it keeps by row. The answers given here are those of a group that stores nothing.
    """

    index: int
    """Its index in the plan, by which steps name it."""
    most_drafts: int = UNLIMITED
    """How many drafts a step may verify in all: of each the group keeps what comes after it."""
    saves: bool = False
    """Whether steps are followed by copies of what they computed: else `cut` and `save` are not
    asked."""

    def fits(self, num_blocks: int) -> bool:
        """Whether a sequence that runs alone can always acquire this many blocks at once."""
        return True

    def available(self, blocks: SequenceOf[int] = ()) -> int:
        """Return how many blocks could be acquired once a sequence has resumed after these cached
        ones."""
        return UNLIMITED

    @property
    def usage(self) -> float:
        """Share of the places that sequences hold, 0 to 1, if they are limited."""
        return 0.0

    def match(self, blocks: SequenceOf[int], count: int) -> int:
        """Return the length of the longest prefix, at most `count` of these cached blocks, after
        which a sequence can resume."""
        return count

    def resume(self, sequence: Sequence, num_known: int) -> tuple[list[BlockUpdate], list[Copy]]:
        """Let a sequence that has taken a row go on after its blocks, all of them cached. Returns
        the entries of its block table, and what to copy before its first slice. `num_known` blocks
        of its prefix were cached, resumable or not."""
        return self.acquire(sequence, 0), []

    def acquire(self, sequence: Sequence, first: int) -> list[BlockUpdate]:
        """Store what the layers compute for a sequence's blocks from index `first` on, which are
        new. Returns their entries in its block table."""
        return []

    def advance(self, sequence: Sequence, first: int, is_cached: IsCached) -> None:
        """Release what pending tokens do not need. The blocks from index `first` to `num_inserted`
        have just been offered to the prefix cache."""
        return None

    def release(self, sequence: Sequence, is_cached: IsCached) -> None:
        """Release all that a sequence holds. It still has its row and its blocks."""
        return None

    def replace(self, computed: int, known: int) -> None:
        """Let the one sequence that uses the block `computed` use `known`, which has the same
        content and was computed before."""
        return None

    def drop(self, block: int) -> None:
        """Forget a block that no sequence uses."""
        return None

    def needs(self, count: int) -> range:
        """Return the indices of the blocks whose parts a sequence needs to resume after `count`."""
        return range(0)

    def part(self, block: int) -> int | None:
        """Return the place of what it keeps of a block for later, if it does."""
        return self.place(block)

    def target(self, sequence: Sequence, block: int) -> int | None:
        """Return the place to load a resumed sequence's part of a block to."""
        return self.place(block)

    def place(self, block: int) -> int | None:
        """Return a block's place, for block tables and copies of it. None if it has none, or if a
        sequence could not go on inside a copy."""
        return None

    def accepted(self, row: int, count: int) -> Iterable[Copy]:
        """Return what to copy where a row goes on after one of the last step's drafts: the last of
        the first `count` in it."""
        return ()

    def cut(self, sequence: Sequence, start: int, stop: int) -> int:
        """Return where a slice from `start` to at most `stop` ends."""
        return stop

    def save(self, stops: SequenceOf[tuple[Sequence, int]]) -> Iterable[Copy]:
        """Return what to copy after a step that computes each of these sequences up to a token. Of
        two copies to one place the last counts."""
        return ()

    def watch(self, changed: Callable[[int], object]) -> None:
        """Call `changed` with each cached block whose part comes or goes apart from the block."""
        return None

    def check(
        self, sequences: Collection[Sequence], users: Callable[[int], int], is_cached: IsCached
    ) -> None:
        """Assert its invariants, given the running sequences and how many of them use a block."""
        return None
