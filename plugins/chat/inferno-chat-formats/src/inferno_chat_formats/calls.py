"""Reads one call, or a section of calls, by its description."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attrs import define, field

from inferno_chat_formats.elements import elements
from inferno_chat_formats.reader import Broken, Text, Wait, dump_json, parse_json
from inferno_chat_formats.spec import Calls, IdStyle, Keys, Part, Slot
from inferno_chat_formats.values import Tools, gemma_object, property_of, python_calls, typed

_ALPHANUMERIC = string.ascii_letters + string.digits
_TYPES = ("true", "false", "string", "number", "integer", "boolean", "array", "object", "null")
"""What a slot for a type may say. DeepSeek only says whether the value is a string."""
_JSON_SLOTS = (Slot.ARGUMENTS, Slot.OBJECT, Slot.OBJECTS, Slot.GEMMA_ARGUMENTS)


class Call(NamedTuple):
    name: str
    arguments: str
    """JSON."""
    id: str = ""
    """As the model wrote it."""


def new_id(style: IdStyle, call: Call, index: int) -> str:
    """Return the id of a call: the model's own where the format has one."""
    if call.id and style != "call":
        return call.id
    if style == "alphanumeric":
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
    if style == "named":
        return f"functions.{call.name}:{index}"
    return f"call_{secrets.token_hex(12)}"


@define
class _Found:
    """What the parts of a call read so far."""

    name: str = ""
    id: str = ""
    arguments: dict[str, Any] = field(factory=dict)
    whole: list[Call] | None = None
    """Calls that a slot read by itself."""


def read_call(text: Text, calls: Calls, tools: Tools) -> Wait[list[Call]]:
    """Read a call, or several if they are written as one array. Raises Broken."""
    fields = _Found()
    for i, part in enumerate(calls.call):
        if isinstance(part, Slot):
            following = calls.call[i + 1] if i + 1 < len(calls.call) else ""
            yield from _slot(text, part, following, calls, tools, fields)
        elif not (yield from text.accept(part)):
            before = calls.call[i - 1] if i else ""
            last = i == len(calls.call) - 1
            if not (last and before is not Slot.NAME and _is_cut(text, part)):
                raise Broken
            text.pos = len(text.buffer)
    if fields.whole is not None:
        return fields.whole
    if not fields.name:
        raise Broken
    return [Call(fields.name, dump_json(fields.arguments), fields.id)]


def _is_cut(text: Text, literal: str) -> bool:
    """Whether the output ends in or before a call's last marker: the call itself is complete."""
    return text.ended and literal.strip().startswith(text.rest.strip())


def _slot(
    text: Text, slot: Slot, following: Part, calls: Calls, tools: Tools, found: _Found
) -> Wait[None]:
    if slot is Slot.NAME:
        found.name = yield from text.name()
    elif slot is Slot.ID:
        found.id = yield from text.name()
    elif slot is Slot.NAMED_ID:
        found.id = yield from text.name()
        named = re.fullmatch(r"(?:functions\.)?(.+?)(?::\d+)?", found.id)
        found.name = named[1] if named else ""
    elif slot is Slot.ARGUMENTS:
        found.arguments = arguments_of((yield from text.json()))
    elif slot is Slot.GEMMA_ARGUMENTS:
        found.arguments = yield from gemma_object(text)
    elif slot is Slot.OBJECT:
        found.whole = [call_of((yield from text.json()), calls.keys)]
    elif slot is Slot.OBJECTS:
        listed = yield from text.json()
        items = listed if isinstance(listed, list) else [listed]
        found.whole = [call_of(item, calls.keys) for item in items]
        if not items:
            raise Broken
    elif slot is Slot.PYTHON:
        if following:
            assert isinstance(following, str), "a marker ends Python calls"
            source = yield from text.until(following.strip())
            text.pos -= len(following.strip())
        else:
            source = yield from text.python()
        found.whole = [Call(name, dump_json(args)) for name, args in python_calls(source)]
    elif slot is Slot.ELEMENTS:
        mark = calls.parameter[0]
        assert isinstance(mark, str), "a marker comes before each tag"
        found.arguments = yield from elements(text, mark, tools.get(found.name, {}))
    elif slot is Slot.PARAMETERS:
        yield from _parameters(text, calls.parameter, tools.get(found.name, {}), found)
    else:
        raise AssertionError(f"{slot} is a parameter's")


def _parameters(
    text: Text, parts: Sequence[Part], schema: Mapping[str, Any], found: _Found
) -> Wait[None]:
    first = parts[0]
    assert isinstance(first, str), "a marker opens a parameter"
    while (yield from text.accept(first)):
        key, is_text, value = "", None, ""
        for i, part in enumerate(parts[1:], 1):
            if not isinstance(part, Slot):
                yield from text.expect(part)
                continue
            before, after = parts[i - 1], parts[i + 1]
            assert isinstance(before, str) and isinstance(after, str), "markers surround slots"
            end = after.split()[0]
            if part is Slot.VALUE:
                value = yield from _value(text, end, lines=before.endswith("\n"))
            else:
                word = (yield from text.until(end, most=256)).strip()
                if part is Slot.KEY:
                    key = word
                else:
                    if word not in _TYPES:
                        raise Broken
                    is_text = word in ("true", "string")
            text.pos -= len(end)
        if not key or key in found.arguments:
            raise Broken
        if is_text is None:
            found.arguments[key] = typed(value, schema, property_of(schema, key))
        else:
            found.arguments[key] = value if is_text else _not_text(value)


def _value(text: Text, end: str, *, lines: bool) -> Wait[str]:
    """Read a value up to its closing marker, without the line breaks around it if it is on its own
    lines."""
    start = text.pos  # white space after the opening marker is the value's
    value = yield from text.until(end)
    assert text.pos > start, "the marker was read"
    if lines:
        value = value.removeprefix("\n").removesuffix("\n")
    return value


def _not_text(value: str) -> Any:
    try:
        return parse_json(value.strip())
    except Broken:
        return value


def call_of(value: Any, keys: Keys) -> Call:
    """Return the call that a JSON object is. Raises Broken."""
    if not isinstance(value, dict):
        raise Broken
    if keys.single:
        if len(value) != 1:
            raise Broken
        [(name, arguments)] = value.items()
        return Call(_name(name), dump_json(arguments_of(arguments)))
    if isinstance(value.get("function"), dict) and value.keys() <= {"function", "type", "id"}:
        return call_of({**value["function"], "id": value.get("id", "")}, keys)
    if value.keys() - keys.known:
        raise Broken
    arguments = next(
        (value[key] for key in (keys.arguments, "arguments", "parameters") if key in value), {}
    )
    call_id = value.get(keys.id or "id", "")
    return Call(
        _name(value.get(keys.name)),
        dump_json(arguments_of(arguments)),
        str(call_id) if isinstance(call_id, str | int) else "",
    )


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise Broken
    return value


def arguments_of(value: Any) -> dict[str, Any]:
    """Return arguments as an object; some models write it as a string. Raises Broken."""
    if isinstance(value, str):
        value = parse_json(value) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Broken
    return value
