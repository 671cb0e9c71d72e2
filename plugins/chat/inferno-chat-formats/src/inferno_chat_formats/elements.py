"""Arguments that are elements: `<key>value</key>`, where a value may consist of elements itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno_chat_formats.reader import MAX_DEPTH, Broken, Text, Wait
from inferno_chat_formats.values import property_of, resolve, typed, types_of

ITEM = "item"
"""The name of a list's elements."""

Schema = Mapping[str, Any]


def elements(text: Text, mark: str, schema: Schema) -> Wait[dict[str, Any]]:
    """Read the elements of an object, each tag with the marker before it. Raises Broken."""
    return _members((yield from _children(text, mark, schema, schema, 0)))


def _members(children: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(children)
    if len(members) < len(children):
        raise Broken
    return members


def _children(
    text: Text, mark: str, root: Schema, schema: Schema, depth: int
) -> Wait[list[tuple[str, Any]]]:
    if depth > MAX_DEPTH // 8:
        raise Broken
    children: list[tuple[str, Any]] = []
    while True:
        start = text.pos
        opens = yield from text.accept(f"{mark}<")
        if not opens or (yield from text.peek()) in ("/", ""):
            text.pos = start
            return children
        key = yield from text.until(">", most=256)
        if not key or key != key.strip():
            raise Broken
        items = schema.get("items")
        of = items if key == ITEM and isinstance(items, Mapping) else property_of(schema, key)
        inner = resolve(root, of)
        children.append((key, (yield from _value(text, mark, key, root, inner, depth))))


def _value(text: Text, mark: str, key: str, root: Schema, schema: Schema, depth: int) -> Wait[Any]:
    """Read a value and its closing tag. It consists of elements if it has any, unless the schema
    asks for a string."""
    closing, types, start = f"{mark}</{key}>", types_of(root, schema), text.pos
    if types != {"string"}:
        children = yield from _children(text, mark, root, schema, depth + 1)
        nested = children or types in ({"array"}, {"object"})
        if nested and (yield from text.accept(closing)):
            names = {name for name, _ in children}
            if types == {"array"} or ("object" not in types and names == {ITEM}):
                if names - {ITEM}:
                    raise Broken
                return [value for _, value in children]
            return _members(children)
        text.pos = start
    return typed((yield from text.until(closing)), root, schema)
