"""How the processes of a model are: what a server exports of them."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from inferno.request.requests import EngineStats

EngineState = Literal["ok", "restarting", "stalled", "outdated", "waiting"]
"""`outdated`: it has other weights than the rest, and gets no requests. `waiting`: nor does it, as
another one that it computes together with takes none."""


@frozen(kw_only=True)
class Health:
    """The counters begin with the client; an engine that is started anew goes on with them."""

    restarts: int = 0
    """Engine processes that ended or hung."""
    failed_starts: int = 0
    """Starts that have failed one after another."""
    silence: float = 0.0
    """Seconds since the engine's last sign of life."""
    still: float = 0.0
    """Seconds since the engine's loop came round: the length of the step that it runs, or of what
    it waits for."""
    given_up: int = 0
    """Requests that ended because it did not answer."""
    checks: int = 0
    """Grammars that were checked, those that are remembered left out."""
    check_seconds: float = 0.0
    """How long that took, with the wait for the checker."""
    checker_kills: int = 0
    """Grammars that ended the checker's process, or took too long in it."""


@frozen(kw_only=True)
class EngineView:
    """One of several engines."""

    state: EngineState
    pid: int | None = None
    """Of its process, or None while there is none."""
    stats: EngineStats
    health: Health
