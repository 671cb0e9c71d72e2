"""The client of a plan: of one engine process, or of several."""

from __future__ import annotations

from typing import Any

from inferno.plan import Plan
from inferno.process.client import EngineClient
from inferno.process.engines.client import EnginesClient

AnyClient = EngineClient | EnginesClient


def client_for(plan: Plan, **given: Any) -> AnyClient:
    """Return the client of the plan's engine, or engines. `given` are `EngineClient`'s options."""
    if plan.engines is None:
        return EngineClient(plan, **given)
    return EnginesClient(plan, **given)
