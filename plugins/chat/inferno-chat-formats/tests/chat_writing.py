"""Writes answers as a model of each family does: by the same descriptions, the other way round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferno_chat_formats.spec import Calls, Part, Slot, Spec

Call = tuple[str, Mapping[str, Any]]


def written(spec: Spec, calls: Sequence[Call], content: str = "", which: int = 0) -> str:
    """Content and calls; of a format without markers, the calls alone."""
    description = spec.calls[which]
    if Slot.OBJECTS in description.call or Slot.PYTHON in description.call:
        return content + _call(description, description.call, calls)
    each = [_call(description, description.call, [call], i) for i, call in enumerate(calls)]
    between = description.between or ""
    return f"{content}{description.opening}{between.join(each)}{description.closing}"


def _call(description: Calls, parts: Sequence[Part], calls: Sequence[Call], index: int = 0) -> str:
    return "".join(
        part if isinstance(part, str) else _slot(description, part, calls, index) for part in parts
    )


def _slot(description: Calls, slot: Slot, calls: Sequence[Call], index: int) -> str:
    name, arguments = calls[0]
    dumped = json.dumps(arguments, ensure_ascii=False)
    objects = [_object(description, call, i + index) for i, call in enumerate(calls)]
    texts = {
        Slot.NAME: name,
        Slot.RECIPIENT: f" to={name}",
        Slot.ID: f"abcdef{index:03}",
        Slot.NAMED_ID: f"functions.{name}:{index}",
        Slot.ARGUMENTS: dumped,
        Slot.GEMMA_ARGUMENTS: _gemma(arguments),
        Slot.OBJECT: json.dumps(objects[0], ensure_ascii=False),
        Slot.OBJECTS: json.dumps(objects, ensure_ascii=False),
    }
    if slot is Slot.PYTHON:
        return "[" + ", ".join(map(_python, calls)) + "]"
    if slot is Slot.ELEMENTS:
        return _elements(str(description.parameter[0]), arguments)
    if slot is Slot.PARAMETERS:
        return "".join(_parameter(description.parameter, k, v) for k, v in arguments.items())
    return texts[slot]


def _object(description: Calls, call: Call, index: int) -> dict[str, Any]:
    keys, (name, arguments) = description.keys, call
    if keys.single:
        return {name: arguments}
    fields = {keys.name: name, keys.arguments: arguments}
    return fields | ({keys.id: str(index)} if keys.id else {})


def _elements(mark: str, value: Any) -> str:
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else (("item", v) for v in value)
        return "".join(f"{mark}<{k}>{_elements(mark, v)}{mark}</{k}>" for k, v in members)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parameter(parts: Sequence[Part], key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    spelled = (
        {True: "string", False: "number"}
        if "type=" in str(parts)
        else {True: "true", False: "false"}
    )
    slots = {Slot.KEY: key, Slot.VALUE: text, Slot.TYPE: spelled[isinstance(value, str)]}
    return "".join(part if isinstance(part, str) else slots[part] for part in parts)


def _python(call: Call) -> str:
    arguments = (f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in call[1].items())
    return f"{call[0]}({', '.join(arguments)})"


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_gemma(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return json.dumps(value)
