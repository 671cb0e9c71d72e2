"""The cache groups of a plan."""

from __future__ import annotations

from inferno.core.kvcache.full import FullGroup
from inferno.core.kvcache.group import CacheGroup
from inferno.core.kvcache.state import Snapshots, StateGroup
from inferno.core.kvcache.window import WindowGroup
from inferno.plan import Plan


def groups_of(plan: Plan, *, saves: bool) -> list[CacheGroup]:
    """Return a plan's groups, by index. States are saved only where a prefix cache can find
    them."""
    groups: list[CacheGroup] = []
    for index, group in enumerate(plan.groups):
        if group.kind == "full":
            groups.append(FullGroup(index))
        elif group.window is not None:
            places = group.num_blocks
            chunked = group.kind == "chunk"
            groups.append(WindowGroup(index, places, group.block_size, group.window, chunked))
        else:
            count = group.num_snapshots if saves else 0
            snapshots = Snapshots(plan.max_num_seqs, count, group.num_drafts)
            groups.append(StateGroup(index, snapshots, group.block_size))
    return groups
