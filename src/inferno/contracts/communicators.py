"""Communicators: how the ranks of an engine exchange tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class RankPlace:
    """A rank of an engine, and where it meets the others."""

    rank: int
    """From 0."""
    ranks: int
    """How many there are."""
    folder: str
    """Private to this user and machine; it is there until the engine ends. Rank 0 builds its
    communicator before the others are started."""
    seconds: float = 120.0
    """How long a rank waits for the others."""
    stages: int = 1
    """How many pipeline stages the ranks are. A kernel provider builds for those of one stage."""
    device: str = "cpu"
    """Where the tensors are that this rank exchanges, by torch's name."""


class Communicator(Protocol):
    """One rank's connections to the others. All ranks call the same collectives in the same order,
    each from one thread at a time.

    A collective raises ConnectionError if a rank has left, TimeoutError if one has not been heard
    in time, and RuntimeError if ranks are seen to be in different layers: then the group ends.
    Collectives are recorded in captured steps, as torch operators or by the provider's recording.
    """

    def connect(self) -> None:
        """Meet the other ranks, once: all of them call this. Raises as a collective, and
        OSError."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, of one shape and dtype. It may be in the memory of
        this one's. Every rank gets the same bits, and an element's do not depend on the others."""
        ...

    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """Return all ranks' tensors side by side, in the order of the ranks: their last dimensions
        have these sizes, and the others are equal."""
        ...

    def close(self) -> None:
        """Leave. Ranks that wait for this one fail soon, and so does this one if it waits for
        others. Any thread may call it, more than once."""
        ...
