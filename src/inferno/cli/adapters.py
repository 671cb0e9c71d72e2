"""What `inferno explain` says of adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferno.plan import Plan


def adapter_rows(plan: Plan, origin: Callable[..., str]) -> Iterable[tuple[str, str, str]]:
    """The room for adapters, and those that are loaded. `origin` names a choice's distribution."""
    if (room := plan.adapters) is not None:
        yield "adapters", f"{room.slots} at once, of rank {room.rank} at most", ""
        for use in room.loaded:
            what = f"rank {use.rank}, {use.count} matrices, {use.adapter.digest[:8]}: {use.ref}"
            yield f"  {use.adapter.name}", what, origin(plan, "adapter format", use.adapter.format)
