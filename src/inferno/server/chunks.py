"""Encodes the events of a stream from byte templates, ten times faster than a whole object for each
token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from inferno.server.schema import StreamOptions

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


class Chunks:
    """Encoder of one stream's events, which share an id, a time and a model."""

    def __init__(
        self,
        head: dict[str, Any],
        usage: Callable[..., object],
        options: StreamOptions | None,
        ignored: Sequence[str],
    ) -> None:
        """`usage(reasoning_tokens=None)` returns the usage object as of now."""
        self._include = bool(options and options.include_usage)
        self._continuous = self._include and bool(options and options.continuous_usage_stats)
        self._usage_now = usage
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._first = b',"x_inferno":' + encode({"ignored": ignored}) if ignored else b""

    def event(
        self, index: int, payload: bytes, *, finish: str | None = None, rest: bytes = b""
    ) -> bytes:
        """Encode an update of one choice. `payload` has the members before `finish_reason`, `rest`
        those after it."""
        first, self._first = self._first, b""
        return b'%b{"index":%d,%b,"finish_reason":%b%b}]%b%b}\n\n' % (
            self._head,
            index,
            payload,
            encode(finish),
            rest,
            self._usage(),
            first,
        )

    def end(self, *, reasoning_tokens: int | None = None) -> bytes:
        """Encode the usage, if requested, and the end marker."""
        if not self._include:
            return DONE
        return (
            self._head
            + b'],"usage":'
            + encode(self._usage_now(reasoning_tokens=reasoning_tokens))
            + b"}\n\n"
            + DONE
        )

    def _usage(self) -> bytes:
        if self._continuous:
            return b',"usage":' + encode(self._usage_now())
        return b',"usage":null' if self._include else b""


def members(**values: Any) -> bytes:
    """Encode JSON members, each preceded by a comma."""
    return b"".join(b',"%b":%b' % (name.encode(), encode(value)) for name, value in values.items())
