"""Makes the grammar of outputs with tool calls, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from inferno.contracts import AddedToken, GrammarSpec, ToolChoice
from inferno_chat_formats.elements import ITEM
from inferno_chat_formats.spec import Calls, Part, Slot, Spec, strings
from inferno_chat_formats.values import resolve, types_of

Token = Callable[[str], AddedToken | None]

_TEXT = "/(?s:.*)/"
_SPACE = r"/ ?|\n[ \t]{0,8}/"


def grammar(
    spec: Spec,
    calls: Calls,
    tools: Sequence[Mapping[str, Any]],
    token: Token,
    *,
    choice: ToolChoice,
    parallel: bool,
    opened: bool = False,
) -> str | None:
    """Return the grammar; None for "auto" if calls have no marker. With `opened`, the prompt ends
    with the first call's marker."""
    if choice == "auto" and not calls.marker:
        return None
    known = [_Tool.of(tool, all_strict=choice == "required") for tool in tools]
    rules = _Rules(calls, token, known, parallel)
    lead = f"({rules.literal(spec.grammar_lead)})? " if spec.grammar_lead else ""
    start = f"{lead}{rules.section(opened=opened)}"
    if choice == "auto":
        text = rules.up_to("lead", calls.marker)
        start = f"({text} {rules.section(opened=True)})* {rules.without('TAIL', calls.marker)}"
    return "\n".join([f"start: {start.strip()}", *(f"{n}: {r}" for n, r in rules.rules.items())])


@define
class _Tool:
    name: str
    schema: dict[str, Any]
    """A JSON schema of an object."""

    @classmethod
    def of(cls, tool: Mapping[str, Any], *, all_strict: bool) -> _Tool:
        function = tool.get("function") or {}
        schema = function.get("parameters")
        is_strict = isinstance(schema, Mapping) and (all_strict or function.get("strict") is True)
        fields = dict(schema) if is_strict and isinstance(schema, Mapping) else {}
        return cls(str(function.get("name")), {**fields, "type": "object"})

    @property
    def properties(self) -> Mapping[str, Any]:
        value = self.schema.get("properties")
        return value if isinstance(value, Mapping) else {}

    def part(self, schema: Any) -> dict[str, Any]:
        """Return the schema of one parameter, with the definitions that it may refer to."""
        shared = {key: self.schema[key] for key in ("$defs", "definitions") if key in self.schema}
        return {**(schema if isinstance(schema, Mapping) else {}), **shared}


@define
class _Rules:
    """The rules of one grammar."""

    calls: Calls
    token: Token
    tools: Sequence[_Tool]
    parallel: bool
    rules: dict[str, str] = field(factory=dict)

    def add(self, name: str, rule: str) -> str:
        self.rules[name] = rule
        return name

    def literal(self, text: str) -> str:
        """Return what matches this string: special tokens by id, strings for the rest."""
        if not text:
            return ""
        marks = [m for m in strings(text) if self.is_special(m)]
        first = min(marks, key=lambda m: (text.index(m), -len(m)), default=None)
        if first is None:
            return json.dumps(text, ensure_ascii=False)
        entry = self.token(first)
        assert entry is not None, "it was looked up"
        before, _, after = text.partition(first)
        parts = [self.literal(before), f"<[{entry.id}]>", self.literal(after)]
        return " ".join(filter(None, parts))

    def is_special(self, text: str) -> bool:
        entry = self.token(text)
        return entry is not None and entry.special

    def up_to(self, name: str, marker: str) -> str:
        """Return what matches text up to the marker, and the marker. Text has no special tokens."""
        if self._is_token_first(marker):
            return f"{_TEXT} {self.literal(marker)}"
        self.rules[f"{name}[suffix={json.dumps(marker, ensure_ascii=False)}]"] = _TEXT
        return name

    def without(self, name: str, marker: str) -> str:
        """Return what matches text without the marker."""
        if self._is_token_first(marker):
            return _TEXT
        has = f"({_TEXT} {json.dumps(marker, ensure_ascii=False)} {_TEXT})"
        return self.add(name, f"{_TEXT} & ~{has}")

    def _is_token_first(self, marker: str) -> bool:
        return any(marker.startswith(m) and self.is_special(m) for m in strings(marker))

    def section(self, *, opened: bool = False) -> str:
        """Return a rule for one or more calls; with `opened`, from after the first marker on."""
        calls = self.calls
        call = self._call(calls.call)
        many = self.parallel and calls.repeated
        if opened and not calls.opening:
            first = str(calls.call[0]).lstrip().removeprefix(calls.marker)
            head = self._call((first, *calls.call[1:]), "opened")
        else:
            head = call
        rest = f" ({self.literal(calls.between)} {call})*" if many else ""
        opening = calls.opening
        if opened and opening:
            opening = opening.lstrip().removeprefix(calls.marker)
        return f"{self.literal(opening)} {head}{rest} {self.literal(calls.closing)}".strip()

    def _call(self, parts: Sequence[Part], name: str = "call") -> str:
        whole = {Slot.OBJECT: self._object, Slot.OBJECTS: self._objects}
        slot = next((part for part in parts if part in whole), None)
        if isinstance(slot, Slot):
            written = (whole[slot]() if part is slot else self.literal(str(part)) for part in parts)
            return self.add(name, " ".join(filter(None, written)))
        alternatives = [
            self.add(f"{name}_{i}", self._of_tool(parts, tool, i))
            for i, tool in enumerate(self.tools)
        ]
        return self.add(name, " | ".join(alternatives))

    def _of_tool(self, parts: Sequence[Part], tool: _Tool, i: int) -> str:
        written = []
        for part in parts:
            if not isinstance(part, Slot):
                written.append(self.literal(part))
            elif part is Slot.NAME:
                written.append(json.dumps(tool.name))
            elif part is Slot.RECIPIENT:
                written.append(json.dumps(f" to={tool.name}"))
            elif part is Slot.NAMED_ID:
                written.append(f"{json.dumps(f'functions.{tool.name}:')} /[0-9]+/")
            elif part is Slot.ID:
                written.append("/[a-zA-Z0-9_-]{1,64}/")
            elif part is Slot.ARGUMENTS:
                written.append(f"%json {_dumped(tool.schema)}")
            elif part is Slot.PARAMETERS:
                written.append(self._parameters(tool, i))
            elif part is Slot.ELEMENTS:
                written.append(self._elements(tool, i))
            elif part is Slot.PYTHON:
                written.append(self._python(tool, i))
            else:
                written.append(self._gemma(tool, i))
        return " ".join(filter(None, written))

    # --- one JSON object ---

    def _object(self) -> str:
        objects = [
            self.add(f"object_{i}", f"%json {_dumped(self._as_object(tool))}")
            for i, tool in enumerate(self.tools)
        ]
        return f"({' | '.join(objects)})"

    def _objects(self) -> str:
        more = f'("," {_SPACE} {self._object()})*' if self.parallel else ""
        return f'"[" {_SPACE} {self._object()} {more} {_SPACE} "]"'

    def _as_object(self, tool: _Tool) -> dict[str, Any]:
        keys = self.calls.keys
        if keys.single:
            properties = {tool.name: tool.schema}
        else:
            properties = {keys.name: {"const": tool.name}, keys.arguments: tool.schema}
            if keys.id:
                properties = {**properties, keys.id: {"type": "string"}}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    # --- parameters ---

    def _parameters(self, tool: _Tool, i: int) -> str:
        if not tool.properties:
            return self._any_parameters()
        needed = tool.schema.get("required") or ()
        written = []
        for n, (key, schema) in enumerate(tool.properties.items()):
            name = self.add(f"parameter_{i}_{n}", self._parameter(tool, key, schema, f"{i}_{n}"))
            written.append(name if key in needed else f"{name}?")
        return " ".join(written)

    def _parameter(self, tool: _Tool, key: str, schema: Any, where: str) -> str:
        parts, written = self.calls.parameter, list[str]()
        is_text = types_of(tool.schema, schema if isinstance(schema, Mapping) else {}) <= {"string"}
        skipped = ""
        for j, part in enumerate(parts):
            if part is Slot.KEY:
                written.append(json.dumps(key))
            elif part is Slot.TYPE:
                written.append(self._type(parts[j - 1], is_text=is_text))
            elif part is Slot.VALUE:
                end = str(parts[j + 1])
                values = schema.get("enum") if isinstance(schema, Mapping) else None
                if not is_text:
                    written.append(f"%json {_dumped(tool.part(schema))}")
                elif values:
                    choices = " | ".join(json.dumps(str(v), ensure_ascii=False) for v in values)
                    written.append(f"({choices})")
                else:
                    marker = end.split()[0]
                    written.append(self.up_to(f"value_{where}", marker))
                    skipped = end[: end.index(marker) + len(marker)]
            else:
                written.append(self.literal(str(part).removeprefix(skipped)))
                skipped = ""
        return " ".join(filter(None, written))

    @staticmethod
    def _type(before: Part, *, is_text: bool) -> str:
        if "type=" in str(before):
            return '"string"' if is_text else "/number|integer|boolean|array|object|null/"
        return '"true"' if is_text else '"false"'

    def _any_parameters(self) -> str:
        written, skipped = list[str](), ""
        for j, part in enumerate(self.calls.parameter):
            if part is Slot.KEY:
                written.append(r"/[^\s<>\"']{1,64}/")
            elif part is Slot.TYPE:
                before = self.calls.parameter[j - 1]
                types = [self._type(before, is_text=known) for known in (True, False)]
                written.append(f"({' | '.join(types)})")
            elif part is Slot.VALUE:
                marker = str(self.calls.parameter[j + 1]).split()[0]
                written.append(self.up_to("any_value", marker))
                end = str(self.calls.parameter[j + 1])
                skipped = end[: end.index(marker) + len(marker)]
            else:
                written.append(self.literal(str(part).removeprefix(skipped)))
                skipped = ""
        self.add("any_parameter", " ".join(filter(None, written)))
        return "any_parameter*"

    # --- elements ---

    def _elements(self, tool: _Tool, i: int) -> str:
        mark = str(self.calls.parameter[0])

        def value(schema: Any, where: str, closing: str) -> str:
            """Return what matches a value and its closing tag."""
            schema = resolve(tool.schema, schema) if isinstance(schema, Mapping) else {}
            types = types_of(tool.schema, schema)
            end = self.literal(closing)
            if types <= {"string"}:
                if values := schema.get("enum"):
                    dumped = (json.dumps(str(v), ensure_ascii=False) for v in values)
                    return f"({' | '.join(dumped)}) {end}"
                return self.up_to(f"value_{where}", closing)
            nested = where.count("_") < MAX_NESTED
            if types == {"object"} and schema.get("properties") and nested:
                return f"{members(schema, where)} {end}"
            if types == {"array"} and nested:
                inner = value(schema.get("items"), f"{where}_i", f"{mark}</{ITEM}>")
                item = self.add(f"item_{where}", f"{self.literal(f'{mark}<{ITEM}>')} {inner}")
                return f"{item}* {end}"
            return f"%json {_dumped(tool.part(schema))} {end}"

        def members(schema: Mapping[str, Any], where: str) -> str:
            needed, written = schema.get("required") or (), list[str]()
            for n, (key, each) in enumerate(schema["properties"].items()):
                at = f"{where}_{n}"
                inner = value(each, at, f"{mark}</{key}>")
                name = self.add(f"element_{at}", f"{self.literal(f'{mark}<{key}>')} {inner}")
                written.append(name if key in needed else f"{name}?")
            return " ".join(written)

        if tool.properties:
            return members(tool.schema, f"{i}")
        # Any element, whose closing tag the grammar cannot compare with its opening one. As text,
        # the marker is part of the expression: a lexer does not go back from a longer string.
        special, end = self.is_special(mark), str(self.calls.call[-1]).removeprefix(mark)
        tag = r"<\/?[^\s<>\"'\/]{1,64}>[^\]]*"
        tag = f"/{tag}/" if special else f"/{re.escape(mark)}{tag}/"
        self.add("ELEMENT", f"{tag} & ~({_TEXT} {json.dumps(end)} {_TEXT})")
        self.add("any_element", f"{self.literal(mark)} ELEMENT" if special else "ELEMENT")
        return "any_element*"

    # --- Python and Gemma ---

    def _python(self, tool: _Tool, i: int) -> str:
        """Return a list of one call. Arguments are JSON, which Python reads the same way, except
        for three words that the parser knows."""

        def value(schema: Any, where: str) -> str:
            return f"%json {_dumped(tool.part(schema))}"

        members = self._members(tool.schema, f"{i}", "{}=", value)
        if not tool.properties:
            member = self.add("any_member", rf"/[a-zA-Z_]\w*=/ %json {_dumped({})}")
            members = f"({member} (/, ?/ {member})*)?"
        return f'{json.dumps(f"[{tool.name}(")} {members} ")]"'

    def _gemma(self, tool: _Tool, i: int) -> str:
        def value(schema: Any, where: str) -> str:
            schema = resolve(tool.schema, schema) if isinstance(schema, Mapping) else {}
            types = types_of(tool.schema, schema)
            if types == {"string"}:
                return f"{self.literal(_QUOTE)} {self.up_to(f'value_{where}', _QUOTE)}"
            if types == {"object"} and schema.get("properties") and where.count("_") < MAX_NESTED:
                members = self._members(schema, where, "{}:", value)
                return f'"{{" {members} "}}"'
            if types == {"array"} and where.count("_") < MAX_NESTED:
                item = self.add(f"item_{where}", value(schema.get("items"), f"{where}_i"))
                return f'"[" ({item} ("," {item})*)? "]"'
            return f"%json {_dumped(tool.part(schema))}"

        if tool.properties:
            return value(tool.schema, f"{i}")
        text = f"{self.literal(_QUOTE)} {self.up_to('any_value', _QUOTE)}"
        member = self.add("any_member", rf"/\w+:/ ({text} | %json {_dumped({})})")
        return f'"{{" ({member} ("," {member})*)? "}}"'

    def _members(
        self,
        schema: Mapping[str, Any],
        where: str,
        key_form: str,
        value: Callable[[Any, str], str],
    ) -> str:
        """Return required members, then optional ones, with commas between them."""
        needed = set(schema.get("required") or ())
        properties = schema.get("properties") or {}
        ordered = sorted(properties.items(), key=lambda item: item[0] not in needed)
        written = ""
        for n, (key, each) in reversed(list(enumerate(ordered))):
            comma = "/, ?/ " if n else ""
            at = f"{where}_{n}"
            one = f"{comma}{json.dumps(key_form.format(key))} {value(each, at)}"
            name = self.add(f"member_{at}", one)
            written = f"{name} {written}".strip() if key in needed else f"({name} {written})?"
        return written


MAX_NESTED = 8
"""Nesting beyond which Gemma's arguments are JSON, as they are for schemas that refer to
themselves."""
_QUOTE = '<|"|>'


def _dumped(schema: Mapping[str, Any]) -> str:
    hoisted = _hoisted(dict(schema))
    spec = GrammarSpec(kind="json_schema", text=json.dumps(hoisted))
    return json.dumps({**hoisted, "x-guidance": spec.embedded_json_options}, ensure_ascii=False)


def _hoisted(schema: dict[str, Any]) -> dict[str, Any]:
    """Move definitions to the root, where references look for them."""
    definitions: dict[str, Any] = {}

    def walk(value: Any, top: bool) -> Any:
        if isinstance(value, list):
            return [walk(each, False) for each in value]
        if not isinstance(value, Mapping):
            return value
        members = {}
        for key, each in value.items():
            if key in ("$defs", "definitions") and isinstance(each, Mapping) and not top:
                definitions.setdefault(key, {}).update(each)
            else:
                members[key] = walk(each, False)
        return members

    moved: dict[str, Any] = walk(schema, True)
    for key, schemas in definitions.items():
        moved[key] = {**schemas, **(moved.get(key) or {})}
    return moved
