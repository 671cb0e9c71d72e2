"""Deals NUMA nodes out to ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from inferno import host
from inferno.contracts import Device
from inferno.errors import OptionError
from inferno.plan.options import Options


def process_cores(options: Options, devices: Sequence[Device]) -> tuple[tuple[int, ...], ...]:
    """Return the cores of each process on this machine that computes, on these devices: of the
    ranks of one engine after those of another. Empty unless they are bound. Raises OptionError."""
    if options.numa is None:
        return ()
    near = [device.numa_node for device in devices]
    return rank_cores(options.numa, options.processes_here, host.numa_nodes(), near)


def rank_cores(
    asked: str | None,
    ranks: int,
    nodes: Mapping[int, Sequence[int]],
    near: Sequence[int | None] = (),
) -> tuple[tuple[int, ...], ...]:
    """Return the cores of each rank: those of a node, or a part of them if several ranks are on it.
    `asked` is `auto`, or nodes by number; None: the system chooses, and nothing is returned.
    `nodes` are the machine's, with the cores that may be used. `near` are those of the ranks'
    devices: `auto` takes them if all are known. Raises OptionError."""
    if asked is None:
        return ()
    if not nodes:
        raise OptionError(f"numa {asked!r}: this system names no NUMA nodes", "Leave --numa out.")
    chosen = sorted(nodes) if asked == "auto" else _parsed(asked, nodes)
    chosen = chosen[:ranks]
    of_ranks = [chosen[rank * len(chosen) // ranks] for rank in range(ranks)]
    known = [node for node in near if node is not None and node in nodes]
    if asked == "auto" and len(known) == ranks:
        of_ranks = known
    sharing = defaultdict[int, list[int]](list)
    for rank, node in enumerate(of_ranks):
        sharing[node].append(rank)
    cores = dict[int, tuple[int, ...]]()
    for node, members in sharing.items():
        all_cores = nodes[node]
        if len(all_cores) < len(members):
            raise OptionError(
                f"numa {asked!r}: node {node} has {len(all_cores)} cores for {len(members)} ranks",
                "Use fewer ranks, or name more nodes.",
            )
        for i, rank in enumerate(members):
            first, last = (len(all_cores) * n // len(members) for n in (i, i + 1))
            cores[rank] = tuple(all_cores[first:last])
    return tuple(cores[rank] for rank in range(ranks))


def _parsed(asked: str, nodes: Mapping[int, Sequence[int]]) -> list[int]:
    known = ", ".join(map(str, sorted(nodes)))
    given = [part.strip() for part in asked.split(",")]
    if not all(part.isdecimal() and int(part) in nodes for part in given):
        raise OptionError(f"numa {asked!r} names no NUMA nodes", f"Known: auto, {known}.")
    return [int(part) for part in given]
