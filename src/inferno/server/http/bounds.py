"""Limits of a body's content, checked before it becomes objects: its values are a hundred times
larger in memory than in the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.errors import RequestError

MAX_VALUES = 1_000_000
"""Separators in a body, those within strings included. A field counts as three: its name is made
too."""
MAX_CONTAINERS = 40_000
"""Lists and objects in a body."""
MAX_FIELDS = 10_000
"""Fields of the body itself."""
MAX_DEPTH = 100
"""Nested lists and objects."""
MAX_ITEMS: Mapping[str, int] = {
    "messages": 4_096,
    "tools": 2_000,
    "stop": 256,
    "stop_sequences": 256,
    "logit_bias": 100_000,
}
"""Items of a field."""


def check_size(body: bytes) -> None:
    """Raise RequestError for a body with too many values, without decoding it."""
    if len(body) * 3 < MAX_VALUES:
        return
    if sum(map(body.count, (b",", b"[", b"{"))) + 2 * body.count(b":") > MAX_VALUES:
        raise RequestError(
            f"the body has more than {MAX_VALUES} values", "Send fewer in one request."
        )


def check_shape(body: bytes, raw: Mapping[str, Any]) -> None:
    """Raise RequestError for a decoded body that is nested too deeply, or has too many items in a
    field."""
    for name, most in MAX_ITEMS.items():
        value = raw.get(name)
        if isinstance(value, list | dict) and len(value) > most:
            raise RequestError(
                f"{name} has {len(value)} items", f"Send at most {most}.", param=name
            )
    if len(raw) > MAX_FIELDS:
        raise RequestError(f"the body has {len(raw)} fields", "Send those of this endpoint.")
    # It has no more lists and objects, and no more levels of them, than brackets.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_nesting(raw)


def _check_nesting(raw: Mapping[str, Any]) -> None:
    level: list[Any] = [raw]
    count = 0
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        count += len(level)
        if count > MAX_CONTAINERS:
            raise RequestError(
                f"the body has more than {MAX_CONTAINERS} lists and objects",
                "Send fewer in one request.",
            )
        if not level:
            return
    raise RequestError(f"the body is nested more than {MAX_DEPTH} levels deep", "Flatten it.")
