"""The options of sandboxes, and what `inferno explain` says of one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import rich_click as click

if TYPE_CHECKING:
    from inferno.plan import Plan

_engine = partial(click.option, panel="Engine")

SANDBOX_OPTIONS = [
    _engine(
        "--sandbox",
        is_flag=True,
        default=None,
        help="Confine the engine's processes: no network, no secrets in the environment, no files "
        "but the model's.",
    ),
    _engine(
        "--sandbox-read",
        multiple=True,
        metavar="DIR",
        help="Folder that they may read besides, of adapters and weights that come later; may be "
        "repeated.",
    ),
]


def sandbox_rows(plan: Plan, origin: str) -> Iterable[tuple[str, str, str]]:
    """What confines the engine, what it leaves open, and what it cannot hold."""
    if (use := plan.sandbox) is None:
        return
    yield "sandbox", f"{use.name}: {', '.join(use.holds)}", origin
    yield "", f"reads {', '.join(use.reads)}", ""
    if use.writes:
        yield "", f"writes {', '.join(use.writes)}", ""
    yield from (("", f"not held: {what}", "") for what in use.lacks)
