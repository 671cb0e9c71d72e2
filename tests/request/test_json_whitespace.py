"""The indentation that a schema lets in."""

from __future__ import annotations

import re
from typing import Any

import pytest

from inferno.request.structured_outputs import MAX_LEVELS, UNNAMED_LEVELS, json_whitespace

LEAF = {"type": "string"}


def levels(schema: object) -> int:
    pattern = re.compile(json_whitespace(schema))
    depths = [n for n in range(99) if pattern.fullmatch("\n" + "\t" * n)]
    assert depths == list(range(len(depths)))
    assert [n for n in range(99) if pattern.fullmatch("\r\n" + " " * n)][-1] == 4 * depths[-1]
    assert not pattern.fullmatch("  ") and not pattern.fullmatch("\n\n")
    return depths[-1]


def nested(depth: int) -> dict[str, Any]:
    return {"properties": {"a": nested(depth - 1)}} if depth else LEAF


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (LEAF, 0),
        ({"type": "object", "properties": {"a": LEAF}, "additionalProperties": False}, 1),
        ({"type": "array", "items": {"type": "array", "items": LEAF}}, 2),
        ({"anyOf": [LEAF, {"properties": {"a": {"prefixItems": [LEAF]}}}]}, 2),
        ({"$ref": "#/$defs/a", "$defs": {"a": nested(2)}}, 2),
        (True, UNNAMED_LEVELS),
        ({"title": "anything"}, UNNAMED_LEVELS),
        ({"type": "object"}, UNNAMED_LEVELS),
        ({"properties": {"a": True}}, 1 + UNNAMED_LEVELS),
        ({"properties": {"a": {"$ref": "#"}}}, 2 + UNNAMED_LEVELS),
        ({"$ref": "https://elsewhere"}, UNNAMED_LEVELS),
        (nested(40), MAX_LEVELS),
    ],
)
def test_indentation_is_as_deep_as_the_schema(schema: object, expected: int) -> None:
    assert levels(schema) == expected


def test_definitions_that_name_each_other_take_no_time() -> None:
    """Two ways to each of 60 definitions would be 2**60 in all; and 5000 are no recursion."""
    both: dict[str, Any] = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(5000)}
    for i in range(60):
        each = {"$ref": f"#/$defs/d{i + 1}"}
        both[f"d{i}"] = {"properties": {"a": each, "b": each}}
    assert levels({"$ref": "#/$defs/d0", "$defs": both}) == MAX_LEVELS
