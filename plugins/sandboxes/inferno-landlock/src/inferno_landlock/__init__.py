"""The sandbox `landlock`: Linux's Landlock bounds the files of a process, seccomp its system
calls."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Sandbox


@hookimpl
def inferno_sandboxes() -> list[Sandbox]:
    return [
        Sandbox(
            name="landlock",
            confine="inferno_landlock.box:confine",
            refuses="inferno_landlock.box:refuses",
            holds="inferno_landlock.box:holds",
            lacks="inferno_landlock.box:lacks",
        )
    ]
