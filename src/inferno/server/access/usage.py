"""What each key and each session has used since the server started."""

from __future__ import annotations

from collections import OrderedDict

from attrs import asdict, define

from inferno.request.sessions import short_name

MAX_SESSIONS = 10_000
"""Sessions of all keys that are remembered; the least recently used is forgotten."""


@define(eq=False)
class Used:
    """Counters of a key or a session."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: Used) -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens

    def body(self) -> dict[str, int]:
        """Return the counters and the total of tokens."""
        return {**asdict(self), "total_tokens": self.prompt_tokens + self.completion_tokens}


class UsageBook:
    """Usage of one model."""

    def __init__(self) -> None:
        self._owners: dict[str, Used] = {}
        self._sessions: OrderedDict[tuple[str, str], Used] = OrderedDict()

    def add(self, owner: str, session: str | None, used: Used) -> None:
        """Count a request that has ended."""
        self._owners.setdefault(owner, Used()).add(used)
        if session is not None:
            key = owner, short_name(session)
            self._sessions.setdefault(key, Used()).add(used)
            self._sessions.move_to_end(key)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)

    def of(self, owner: str, session: str | None = None) -> Used | None:
        """Return what an owner has used, in total or in one session; None for nothing."""
        if session is None:
            return self._owners.get(owner)
        return self._sessions.get((owner, short_name(session)))
