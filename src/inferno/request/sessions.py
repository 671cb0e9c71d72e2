"""Sessions: what requests say of theirs, and what is reported of one. A session never decides what
is computed: it is a hint which blocks of the cache to keep."""

from __future__ import annotations

import hashlib

from attrs import frozen

MAX_NAME = 128
"""Characters of a session's name. Clients choose it, and may choose megabytes."""

MOST_TTL = 30 * 24 * 3600
"""Seconds that a session may be kept for."""


@frozen
class SessionHint:
    """The session that a request belongs to."""

    name: str
    owner: str = ""
    """Whose it is: another owner's session of this name is another one."""
    ttl: float | None = None
    """Seconds that it is kept after its last use; None: as long as any."""


@frozen(kw_only=True)
class SessionView:
    """What is kept for a session now. Its tokens are those of full blocks."""

    name: str
    tokens: int
    """Of its latest prompt and answer, up to the quota."""
    pinned: int
    """The leading ones of them that leave the cache's memory last."""
    memory: int
    """Those that are in the cache's memory."""
    host: int = 0
    """Those that are not, but in a store's host memory."""
    disk: int = 0
    """Those that are only farther away."""
    ttl: float
    """Seconds that are left of it."""
    quota: int
    """The most tokens that it may have."""


def short_name(name: str) -> str:
    """Return a session's name, or a hash of it if it is too long to be kept."""
    return name if len(name) <= MAX_NAME else hashlib.sha256(name.encode()).hexdigest()


def hint_of(session: str | None, owner: str = "", ttl: float | None = None) -> SessionHint | None:
    """Return the hint of a request to the session of that name; None without a name."""
    return None if not session else SessionHint(short_name(session), owner, ttl)
