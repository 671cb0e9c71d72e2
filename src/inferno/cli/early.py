"""The engine process of a command, launched before the command was imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click import get_current_context

if TYPE_CHECKING:
    from inferno.process.launch import EngineProcess


def engine_process() -> EngineProcess | None:
    """Return the process that `inferno.__main__` launched for this command, or one launched now.
    None where a process of its own is no gain (`launch_early`)."""
    from inferno.process.launch import launch_early

    process: EngineProcess | None = get_current_context().obj
    return process or launch_early()
