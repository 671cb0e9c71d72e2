"""Where the cache's blocks are kept, for `explain`: each tier, and what its folder has."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from inferno import host
from inferno.plan import plan_of_stage

if TYPE_CHECKING:
    from inferno.plan import Plan
    from inferno.plan.store_use import StoreUse
    from inferno.stores.layouts import Compared, Difference, Survey

Row = tuple[str, str, str]
MOST_SHOWN = 4
"""Differences that are shown with their values."""
MOST_NAMED = 8
"""Others that are named."""


@frozen
class Tier:
    """A place for blocks."""

    tier: str
    nbytes: int
    bytes_per_token: float
    """The same in each tier: blocks are copied as they are."""
    where: str = ""

    @property
    def tokens(self) -> int:
        return int(self.nbytes / self.bytes_per_token) if self.bytes_per_token else 0


def tiers(plan: Plan) -> list[Tier]:
    """Return the cache's own memory and its further tiers; empty if it has none. With ranks, those
    of the first one."""
    plan = plan if plan.ranks is None else plan_of_stage(plan, plan.ranks.stage_of(0))
    store, token = plan.store, plan.kv_bytes_per_token
    if store is None or store.name is None:
        return []
    levels = [Tier("memory", plan.kv_bytes, token)]
    if store.host_fold:
        levels.append(Tier("host", store.host_bytes(plan.groups), token))
    if store.folder is not None:
        shared = ", which all engines read" if store.engines > 1 else ""
        levels.append(Tier("disk", store.folder_limit, token, _folder(plan, store) + shared))
    return levels


def sections(plan: Plan, survey: Survey | None) -> Iterator[tuple[str, list[Row]]]:
    """Return titles and rows."""
    if levels := tiers(plan):
        yield f"Tiers of the cache{_of_one(plan)}", [_row(tier) for tier in levels]
    if survey is not None and plan.store is not None:
        yield (
            f"Blocks in {_folder(plan, plan.store)}",
            list(_stored(survey, plan.store.folder_limit)),
        )


def _of_one(plan: Plan) -> str:
    """Say of whom they are, if there are several."""
    ranks, engines = plan.ranks, plan.engines
    if ranks is None:
        return "" if engines is None else " of an engine"
    if ranks.pipeline:
        return " of the first rank" + (" of an engine" if engines is not None else "")
    return " of a rank" if engines is None else " of an engine's rank"


def _folder(plan: Plan, store: StoreUse) -> str:
    """Return the folder of the first rank's blocks, in the first engine."""
    return str(store.folder_of(None if plan.ranks is None else 0))


def document(plan: Plan, survey: Survey | None) -> dict[str, Any]:
    """Return the same for JSON."""
    if not (levels := tiers(plan)):
        return {}
    rows = [asdict(tier) | {"tokens": tier.tokens} for tier in levels]
    if survey is None:
        return {"tiers": rows}
    layouts = [
        {
            "path": str(each.stored.path),
            "nbytes": each.stored.nbytes,
            "used": each.stored.used,
            "differences": [asdict(difference) for difference in each.differences],
        }
        for each in survey.layouts
    ]
    return {"tiers": rows, "stored": {"files_compared": survey.knows_files, "layouts": layouts}}


def _row(tier: Tier) -> Row:
    size, token = host.format_bytes(tier.nbytes), host.format_bytes(round(tier.bytes_per_token))
    where = f", in {tier.where}" if tier.where else ""
    return tier.tier, f"{size:>10}  {token} a token, {tier.tokens} tokens{where}", ""


def _stored(survey: Survey, limit: int) -> Iterator[Row]:
    for each in survey.layouts:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.stored.used))
        size = host.format_bytes(each.stored.nbytes)
        name = each.stored.path.name
        yield name, f"{size:>10}  used {used}; {_verdict(each, survey.knows_files)}", ""
    others = [each.stored.nbytes for each in survey.layouts if each.differences]
    if others:
        room = f"they make room at a start that finds more than {host.format_bytes(limit // 2)}"
        yield "others", f"{host.format_bytes(sum(others)):>10}  this engine loads none; {room}", ""
    if len(others) == len(survey.layouts):
        yield "this engine's", f"{'none':>10}  it would begin with no stored blocks", ""


def _verdict(compared: Compared, knows_files: bool) -> str:
    if differences := compared.differences:
        return f"another layout: {_listed(differences)}"
    if knows_files:
        return "this engine's layout"
    return "this engine's layout, if the model's files are the same: they are not hashed here yet"


def _listed(differences: Sequence[Difference]) -> str:
    """Those that do not follow from others, with the values of a few."""
    from inferno.stores.layouts import DERIVED

    first = [each for each in differences if each.field.split()[0] not in DERIVED] or differences
    shown = first[:MOST_SHOWN]
    others = list(dict.fromkeys(each.field for each in differences if each not in shown))
    if len(others) > MOST_NAMED:
        others[MOST_NAMED:] = [f"{len(others) - MOST_NAMED} more"]
    return ", ".join(map(str, shown)) + (f"; also {', '.join(others)}" if others else "")
