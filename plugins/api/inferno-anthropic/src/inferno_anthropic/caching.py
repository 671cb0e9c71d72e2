"""Marks of a prompt that Anthropic's clients want to be cached, as a session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from attrs import frozen

from inferno.errors import RequestError
from inferno.server.api import shorten
from inferno_anthropic.schema import MessagesRequest

_SECONDS = {"5m": 300.0, "1h": 3600.0}
MOST_MARKS = 10_000
"""Marks that are read. Anthropic allows four; clients of others send one for each block."""


@frozen
class Session:
    """The session of a request."""

    name: str | None
    ttl: float | None
    """Seconds that its blocks are kept; None: as long as any session's."""


def session_for(body: MessagesRequest, named: str | None) -> Session:
    """Return the session that a request names. One without a name that has marks is in that of its
    beginning: the tools, the system prompt and the first message. Raises RequestError."""
    ttls = [_ttl(mark, param) for mark, param in _marks(body)]
    ttl = body.session_ttl if body.session_ttl is not None else max(ttls, default=None)
    return Session(_beginning(body) if ttls and named is None else named, ttl)


def _marks(body: MessagesRequest) -> Iterator[tuple[Any, str]]:
    """Return each mark, with where it is."""
    if body.cache_control is not None:
        yield body.cache_control, "cache_control"
    places = [("tools", body.tools), ("system", body.system)]
    places += [(f"messages[{i}].content", m.get("content")) for i, m in enumerate(body.messages)]
    count = 0
    for where, blocks in places:
        for i, block in enumerate(blocks if isinstance(blocks, list) else ()):
            mark = block.get("cache_control") if isinstance(block, Mapping) else None
            if mark is not None and (count := count + 1) <= MOST_MARKS:
                yield mark, f"{where}[{i}].cache_control"


def _ttl(mark: Any, param: str) -> float:
    ttl = mark.get("ttl", "5m") if isinstance(mark, Mapping) else None
    if not isinstance(ttl, str) or ttl not in _SECONDS:
        raise RequestError(
            f"{param} has the ttl {shorten(repr(ttl), 40)}",
            'Send {"type": "ephemeral"}, with a ttl of 5m or 1h.',
            param=param,
        )
    return _SECONDS[ttl]


def _beginning(body: MessagesRequest) -> str:
    """Return a name for conversations that begin alike. Marks move from turn to turn."""
    first = body.messages[0].get("content") if body.messages else None
    parts = msgspec.json.encode([_unmarked(each) for each in (body.tools, body.system, first)])
    return f"cache_control-{hashlib.blake2b(parts, digest_size=12).hexdigest()}"


def _unmarked(blocks: Any) -> Any:
    """Return blocks, or a string, without marks."""
    if not isinstance(blocks, list):
        return blocks
    return [
        {name: value for name, value in block.items() if name != "cache_control"}
        if isinstance(block, Mapping)
        else block
        for block in blocks
    ]
