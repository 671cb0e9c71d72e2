"""A conversation as the model reads it, and where in it each message ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen


@frozen
class Mark:
    """The end of a message in the rendered string."""

    index: int
    """Of the message in the request."""
    role: str
    end: int
    """In characters."""


@frozen
class Rendered:
    """A rendered conversation."""

    text: str
    marks: tuple[Mark, ...] = ()
    """In order. A message that the template leaves out or changes has none."""

    @classmethod
    def of(cls, text: str, messages: Sequence[Mapping[str, Any]]) -> Rendered:
        """Find where the messages' contents end in `text`."""
        marks, at = [], 0
        for index, message in enumerate(messages):
            content = _content(message).strip()
            start = text.find(content, at) if content else -1
            if start >= 0:
                at = start + len(content)
                marks.append(Mark(index, str(message.get("role", "")), at))
        return cls(text, tuple(marks))

    def message_at(self, position: int) -> Mark | None:
        """Return the message that a character belongs to, its header included; None after the last
        one."""
        return next((mark for mark in self.marks if position < mark.end), None)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else ()
    return next((p["text"] for p in reversed(parts) if isinstance(p.get("text"), str)), "")
