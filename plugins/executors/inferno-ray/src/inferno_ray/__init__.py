"""An executor that starts other machines' ranks by Ray. Imports neither Ray nor torch."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Executor


@hookimpl
def inferno_executors() -> list[Executor]:
    return [
        Executor(
            name="ray",
            machines="inferno_ray.cluster:start",
            refuses="inferno_ray.cluster:refuses",
        )
    ]
