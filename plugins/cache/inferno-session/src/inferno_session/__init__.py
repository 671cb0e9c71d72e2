"""Sessions: the blocks that a conversation comes back to leave the cache last."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import SessionKeeper


@hookimpl
def inferno_session_keepers() -> list[SessionKeeper]:
    return [SessionKeeper(name="session", build="inferno_session.keeper:build")]
