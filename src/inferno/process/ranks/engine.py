"""Loads an engine, with its other ranks if it has several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from inferno.core.engine import Engine
from inferno.host import keep_freed_memory
from inferno.plan import Opened
from inferno.process.ranks.binding import bind
from inferno.weights.packing import PackedWeights

if TYPE_CHECKING:
    from inferno.process.engines.together import Together


def load_engine(
    opened: Opened,
    packed: PackedWeights | None = None,
    *,
    streams: bool = False,
    wanted: Callable[[], bool] = lambda: True,
    together: Together | None = None,
) -> Engine:
    """Load the plan's model as `Engine.load` does, with its ranks if it has several, or `together`
    with other engines: these are waited for as long as the engine is `wanted`. Raises what that
    does, and EngineDeadError if a rank or another engine ends meanwhile."""
    if opened.plan.whole_prompts:
        keep_freed_memory()
    if together is not None:
        bind(opened.plan, 0)
        home_of = together.home_of(wanted)
        engine = Engine.load(opened, packed=packed, streams=streams, home_of=home_of)
        # A round takes as long as its slowest step: each bounds its own for the streams of all.
        engine.budget.others_stream = lambda: together.others_stream
        together.own = engine.expected
        together.streams = lambda: engine.busy and engine.budget.streams()[1]
        return engine
    if opened.plan.ranks is None:
        bind(opened.plan, 0)
        return Engine.load(opened, packed=packed, streams=streams)
    from inferno.process.ranks.leading import LeadingHome

    executor, launcher = opened.parts.executor, opened.parts.launcher
    assert executor is not None and executor.start is not None, "the plan chose one"
    launch = launcher.machines if launcher is not None else None
    home = LeadingHome.starting(executor.start, launch=launch, wanted=wanted)
    return Engine.load(opened, packed=packed, streams=streams, home_of=home)
