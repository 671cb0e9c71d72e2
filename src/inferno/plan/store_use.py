"""Where the cache's blocks are kept beside its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from inferno.contracts import Link, StoreNeed
from inferno.plan.cache_groups import CacheGroupPlan


@frozen(kw_only=True)
class StoreUse:
    """The store of blocks, and its tiers."""

    name: str
    distribution: str
    folder: str | None = None
    """The disk tier; None: there is none. With ranks, each has a folder in it."""
    folder_limit: int = 0
    """Bytes of all files in it, or in that of each rank."""
    host_fold: float = 0.0
    """The host tier, as a multiple of the cache's own blocks; 0: there is none."""
    link: Link | None = None
    """The end of a link to other instances, instead of tiers."""
    hashes: str | None = None
    """Where hashes of the model's files are remembered, if not in `folder`."""

    def folder_of(self, rank: int | None) -> Path:
        """Return the folder of one process, or of a rank. They are apart: opening one removes
        what is too much in it."""
        assert self.folder is not None, "a store with a disk tier"
        return Path(self.folder) if rank is None else Path(self.folder) / f"rank-{rank}"

    def need(self, groups: Sequence[CacheGroupPlan], rank: int | None = None) -> StoreNeed:
        """Return what the store is built for, or that of one rank, without the layout."""
        return StoreNeed(
            layout="",
            sizes=tuple(group.unit_bytes for group in groups),
            folder=None if self.folder is None else self.folder_of(rank),
            folder_limit=self.folder_limit,
            host_limit=self.host_bytes(groups),
            link=self.link,
        )

    def host_bytes(self, groups: Sequence[CacheGroupPlan]) -> int:
        """Return the bytes of the host tier."""
        return round(self.host_fold * sum(group.nbytes for group in groups))
