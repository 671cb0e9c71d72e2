"""Where the cache's blocks are kept beside its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import evolve, frozen

from inferno.contracts import Link, StoreNeed
from inferno.plan.addresses import address_of, urls_of
from inferno.plan.cache_groups import CacheGroupPlan


@frozen(kw_only=True)
class StoreUse:
    """The stores of blocks: tiers, a link to other instances, or both."""

    name: str | None = None
    """Of the store that keeps blocks in tiers; None: none does."""
    linked_by: str | None = None
    """Of the store that links; None: none does."""
    folder: str | None = None
    """The disk tier; None: there is none. With ranks or engines, each has a folder in it."""
    folder_limit: int = 0
    """Bytes of all files in it, or in that of each rank and engine."""
    engines: int = 1
    """How many engines have one, and read those of the others."""
    engine: int = 0
    """Which of them has this plan."""
    ranks: int = 1
    """How many ranks each of them has."""
    host_fold: float = 0.0
    """The host tier, as a multiple of the cache's own blocks; 0: there is none."""
    host_most: int | None = None
    """The most bytes of a process's host tier that fit into the machine's memory; None: all of it
    fits, as far as is known."""
    link: Link | None = None
    """The end of a link to other instances. Its URL is as the options have it: the first process's,
    or several that engines share out."""
    hashes: str | None = None
    """Where hashes of the model's files are remembered, if not in `folder`."""

    @property
    def is_asked(self) -> bool:
        """Whether prompts are computed for other instances."""
        return self.link is not None and self.link.role == "prefill"

    def folder_of(self, rank: int | None, engine: int | None = None) -> Path:
        """Return the folder of one process, or of a rank, in this engine or another. They are
        apart: opening one removes what is too much in it."""
        assert self.folder is not None, "a store with a disk tier"
        folder = Path(self.folder)
        if self.engines > 1:
            folder /= f"engine-{self.engine if engine is None else engine}"
        return folder if rank is None else folder / f"rank-{rank}"

    def others(self, rank: int | None) -> tuple[Path, ...]:
        """Return the folders in which other engines have the same blocks, those of an earlier start
        included."""
        if self.folder is None:
            return ()
        others = (engine for engine in range(self.engines) if engine != self.engine)
        now = [self.folder_of(rank, engine) for engine in others]
        before = [root if rank is None else root / f"rank-{rank}" for root in self._roots()]
        known = {self.folder_of(rank), *now}
        return (*now, *(path for path in before if path not in known and path.is_dir()))

    def former(self, rank: int | None) -> tuple[Path, ...]:
        """Return the folders of processes that an earlier start had, for the first process to
        remove what is too much: of other engines, and of other ranks."""
        if self.folder is None or self.engine or rank:
            return ()
        ranks = [None] if rank is None else range(self.ranks)
        now = {self.folder_of(each, engine) for each in ranks for engine in range(self.engines)}
        folders = [
            path for root in self._roots() for path in (root, *sorted(root.glob("rank-[0-9]*")))
        ]
        return tuple(path for path in folders if path not in now and path.is_dir())

    def _roots(self) -> list[Path]:
        """Return the folders that engines have, or had: of one without others, it is `folder`."""
        assert self.folder is not None, "a store with a disk tier"
        return [Path(self.folder), *sorted(Path(self.folder).glob("engine-[0-9]*"))]

    def need_to_link(self, groups: Sequence[CacheGroupPlan], rank: int | None = None) -> StoreNeed:
        """Return what the store that links is built for, or that of one rank, without the
        layout."""
        sizes = tuple(group.unit_bytes for group in groups)
        return StoreNeed(layout="", sizes=sizes, link=self.link_of(rank))

    def need(self, groups: Sequence[CacheGroupPlan], rank: int | None = None) -> StoreNeed:
        """Return the same for the store of the tiers."""
        return StoreNeed(
            layout="",
            sizes=tuple(group.unit_bytes for group in groups),
            folder=None if self.folder is None else self.folder_of(rank),
            folder_limit=self.folder_limit,
            beside=self.others(rank),
            former=self.former(rank),
            host_limit=self.host_bytes(groups),
        )

    def link_of(self, rank: int | None) -> Link | None:
        """Return the end of a link of this engine, or of one of its ranks. Each is connected to one
        process of the other instance, through a separate address. Engines that decode take the
        URLs by turns; if there are more URLs, each takes several."""
        if (link := self.link) is None:
            return None
        if link.role == "prefill":
            url, engine = link.url, self.engine
        else:
            urls = urls_of(link.url)
            url, *others = urls[self.engine % len(urls) :: self.engines]
            engine = 0
            more = tuple(address_of(each, 0, self.ranks, rank or 0) for each in others)
            link = evolve(link, others=more)
        return evolve(link, url=address_of(url, engine, self.ranks, rank or 0))

    def addresses(self) -> list[str]:
        """Return the addresses of a link's ends: of all ranks of each engine, in their order."""
        engines = [evolve(self, engine=engine) for engine in range(self.engines)]
        pairs = [(engine, rank) for engine in engines for rank in range(self.ranks)]
        links = [engine.link_of(rank) for engine, rank in pairs]
        return [url for link in links if link is not None for url in (link.url, *link.others)]

    def host_bytes(self, groups: Sequence[CacheGroupPlan]) -> int:
        """Return the bytes of the host tier."""
        wanted = round(self.host_fold * sum(group.nbytes for group in groups))
        return wanted if self.host_most is None else min(wanted, self.host_most)
