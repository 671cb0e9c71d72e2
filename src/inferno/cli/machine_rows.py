"""What each machine, and each of its ranks, needs of memory, for `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from inferno import host

if TYPE_CHECKING:
    from inferno.plan import MachineBytes, Plan, RankBytes

Row = tuple[str, str, str]


def section(plan: Plan) -> tuple[str, list[Row]] | None:
    """Return a title and rows; None if one process computes all of it."""
    from inferno.plan import machines_of

    if not (machines := machines_of(plan)):
        return None
    title = "Memory of each machine" if len(machines) > 1 else "Memory of this machine"
    return title, [row for machine in machines for row in _rows(machine)]


def document(plan: Plan) -> dict[str, Any]:
    """Return the same for JSON."""
    from inferno.plan import machines_of

    entries = [_machine(each) for each in machines_of(plan)]
    return {"machines": entries} if entries else {}


def _machine(machine: MachineBytes) -> dict[str, Any]:
    ranks = [{"rank": each.rank, **_sizes(each)} for each in machine.ranks]
    return {
        "machine": machine.number,
        "engines": machine.engines,
        **_sizes(machine),
        "ranks": ranks,
    }


def _sizes(found: MachineBytes | RankBytes) -> dict[str, int]:
    return {
        "weight_bytes": found.weights,
        "cache_bytes": found.cache,
        "other_bytes": found.nbytes - found.weights - found.cache,
        "nbytes": found.nbytes,
    }


def _rows(machine: MachineBytes) -> Iterator[Row]:
    of = f"{machine.engines} engines: " if machine.engines > 1 else ""
    yield f"machine {machine.number}", _said(machine, of), ""
    # Those of a stage have the same layers, and most often as much of them.
    for _, group in groupby(machine.ranks, key=lambda rank: tuple(_sizes(rank).values())):
        ranks = [*group]
        first, last = ranks[0].rank, ranks[-1].rank
        each = "each: " if last > first or machine.engines > 1 else ""
        label = f"rank {first}" if last == first else f"ranks {first}-{last}"
        yield f"  {label}", _said(ranks[0], each), ""


def _said(found: MachineBytes | RankBytes, of: str) -> str:
    weights, cache, other, nbytes = map(host.format_bytes, (_sizes(found)[name] for name in _ORDER))
    return f"{nbytes:>10}  {of}{weights} of weights, {cache} of cache, {other} besides"


_ORDER = ("weight_bytes", "cache_bytes", "other_bytes", "nbytes")
