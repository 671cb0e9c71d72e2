"""Loads an engine, with its other ranks if it has several."""

from __future__ import annotations

from inferno.core.engine import Engine
from inferno.plan import Opened
from inferno.weights.packing import PackedWeights


def load_engine(
    opened: Opened, packed: PackedWeights | None = None, *, streams: bool = False
) -> Engine:
    """Load the plan's model as `Engine.load` does, with its ranks if it has several. Raises what
    that does, and EngineDeadError if a rank ends meanwhile."""
    if opened.plan.ranks is None:
        return Engine.load(opened, packed=packed, streams=streams)
    from inferno.process.ranks.leading import LeadingHome

    executor = opened.parts.executor
    assert executor is not None, "the plan chose one"
    home = LeadingHome.starting(executor.start)
    return Engine.load(opened, packed=packed, streams=streams, home_of=home)
