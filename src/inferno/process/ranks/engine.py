"""Loads an engine, with its other ranks if it has several."""

from __future__ import annotations

from collections.abc import Callable

from inferno.core.engine import Engine
from inferno.plan import Opened
from inferno.process.ranks.binding import bind
from inferno.weights.packing import PackedWeights


def load_engine(
    opened: Opened,
    packed: PackedWeights | None = None,
    *,
    streams: bool = False,
    wanted: Callable[[], bool] = lambda: True,
) -> Engine:
    """Load the plan's model as `Engine.load` does, with its ranks if it has several: other machines
    are waited for as long as the engine is `wanted`. Raises what that does, and EngineDeadError if
    a rank ends meanwhile."""
    if opened.plan.ranks is None:
        bind(opened.plan, 0)
        return Engine.load(opened, packed=packed, streams=streams)
    from inferno.process.ranks.leading import LeadingHome

    executor, launcher = opened.parts.executor, opened.parts.launcher
    assert executor is not None and executor.start is not None, "the plan chose one"
    launch = launcher.machines if launcher is not None else None
    home = LeadingHome.starting(executor.start, launch=launch, wanted=wanted)
    return Engine.load(opened, packed=packed, streams=streams, home_of=home)
