"""Structured output as callers ask for it, with vLLM's names, and as the one value that requests
carry: `GrammarSpec`."""

from __future__ import annotations

import json as _json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
from attrs import field, frozen

from inferno.errors import RequestError

GrammarKind = Literal[
    "json_schema", "json_object", "regex", "choice", "lark", "gbnf", "structural_tag"
]
"""How a `GrammarSpec`'s text is written: a JSON schema; nothing (any JSON object); a regular
expression that the whole output matches; a JSON list of strings; a grammar in the dialect of Lark
that llguidance documents; a GBNF grammar; a structural tag in JSON."""


MAX_LEVELS = 16
UNNAMED_LEVELS = 3
"""Levels of indentation where a schema names no parts, or refers to itself."""


def json_whitespace(schema: object) -> str:
    """Return the whitespace in JSON of a schema, unless the caller says otherwise, as a regular
    expression: a space, or a line break with the next line's indentation, at most four spaces or a
    tab for each level of the schema. If any were allowed, some models would write nothing else."""
    levels = min(_levels(schema, schema, {}, 0), MAX_LEVELS)
    return rf"( |\r?\n( {{0,{4 * levels}}}|\t{{0,{levels}}}))"


def _levels(part: object, root: object, known: dict[str, int], depth: int) -> int:
    """Return how many brackets the parts that a schema names are in. `known` has those of
    definitions; what is deeper than the limit of schemas counts as unnamed."""
    if part is False:
        return 0
    if not isinstance(part, Mapping) or depth > MAX_DEPTH:
        return UNNAMED_LEVELS
    levels = [0]
    if isinstance(name := part.get("$ref"), str):
        if name not in known:
            known[name] = UNNAMED_LEVELS  # of a reference to itself
            known[name] = _levels(_at(root, name), root, known, depth + 1)
        levels.append(known[name])
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := part.get(key), list):
            levels += [_levels(option, root, known, depth + 1) for option in options]
    inner = [part[key] for key in ("items", "additionalProperties") if key in part]
    for key in ("properties", "patternProperties"):
        if isinstance(named := part.get(key), Mapping):
            inner += named.values()
    if isinstance(items := part.get("prefixItems"), list):
        inner += items
    if inner:
        levels.append(1 + max(_levels(each, root, known, depth + 1) for each in inner))
    elif part.get("type") in ("object", "array") or not part.keys() - _NOTES:
        levels.append(UNNAMED_LEVELS)
    return max(levels)


_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs"}
"""Keywords that say nothing of the value."""


def _at(root: object, reference: str) -> object:
    """Return the part of a schema at `#/a/b`, or True, which is anything."""
    if not reference.startswith("#"):
        return True
    for key in reference.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        root = root.get(key, True) if isinstance(root, Mapping) else True
    return root


@frozen(kw_only=True)
class ReasoningMarkers:
    """Where the reasoning before an answer begins and ends. The grammar applies to what follows."""

    open: str
    close: str
    is_open: bool
    """Whether the prompt has opened it. If not, the output may begin with `open`, or with the
    answer."""
    calls: tuple[str, ...] = ()
    """Markers of calls, which reasoning under a grammar must not contain."""
    calls_end: bool = False
    """Whether such a marker ends reasoning that has no grammar after it."""


@frozen(kw_only=True)
class GrammarSpec:
    """What an output must match."""

    kind: GrammarKind
    text: str = ""
    whitespace: str | None = None
    """For JSON: a regular expression of the whitespace between tokens; empty for none. None leaves
    it to the provider, which allows what models write but no endless runs."""
    reasoning: ReasoningMarkers | None = None
    """The kernel handles it: a provider can ignore it."""
    param: str = field(default="structured_outputs", eq=False)
    """The field of the request that the text comes from, for errors."""

    @property
    def json_options(self) -> dict[str, Any]:
        """How JSON is written and its schema read, as `x-guidance` in llguidance's dialect."""
        if self.whitespace == "":
            space = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        else:
            schema = _json.loads(self.text) if self.kind == "json_schema" else True
            space = {"whitespace_pattern": self.whitespace or json_whitespace(schema)}
        return {**space, "coerce_one_of": True}

    @property
    def embedded_json_options(self) -> dict[str, Any]:
        """The same for JSON in other text, such as a call. Without whitespace of its own it is in
        one line, as templates write it: perhaps a space after a comma and a colon, none elsewhere.
        (Whitespace that is let in is let in everywhere, and this text is not followed by a
        matcher of JSON.)"""
        if self.whitespace is not None:
            return self.json_options
        line = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
        return {**line, "coerce_one_of": True}


MAX_CHARACTERS = 256 * 1024
"""Limit of a grammar's text. The largest schemas in use have a tenth of it."""
MAX_DEPTH = 64
"""Limit of nested objects and lists in a schema."""
PARAM = "structured_outputs"


@frozen(kw_only=True)
class StructuredOutputsParams:
    """What an output must match: exactly one of `json`, `regex`, `choice`, `grammar`, `json_object`
    and `structural_tag`."""

    json: str | Mapping[str, Any] | bool | None = None
    """A JSON schema, as an object or as text."""
    regex: str | None = None
    """A regular expression that the whole output matches."""
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """A grammar: GBNF if it has `::=`, else Lark."""
    json_object: bool | None = None
    """Any JSON object."""
    structural_tag: str | Mapping[str, Any] | None = None
    """Free text with structures that triggers begin, as in vLLM."""
    disable_any_whitespace: bool = False
    """Write JSON without whitespace."""
    whitespace_pattern: str | None = None
    """The whitespace between JSON tokens, as a regular expression."""

    def spec(self, param: str = PARAM) -> GrammarSpec:
        """Return the value that requests carry. Raises RequestError, which names fields as parts of
        `param`."""
        kinds = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if self.json is False:
            kinds = ["json", *kinds]
        if len(kinds) != 1:
            raise RequestError(
                f"{param} has {' and '.join(kinds) or 'nothing to match'}",
                f"Give exactly one of {', '.join(_KINDS)}.",
                param=param,
            )
        [name] = kinds
        spec = spec_of(name, getattr(self, name), f"{param}.{name}")
        space = "" if self.disable_any_whitespace else self.whitespace_pattern
        if space is not None and not isinstance(space, str):
            raise _wrong(f"{param}.whitespace_pattern", "a string")
        return attrs.evolve(spec, whitespace=space)


def grammar_spec(given: object, param: str = PARAM) -> GrammarSpec | None:
    """Convert what a caller gave: a spec, `StructuredOutputsParams`, or its fields. Raises
    RequestError."""
    if given is None or isinstance(given, GrammarSpec):
        return given
    if isinstance(given, StructuredOutputsParams):
        return given.spec(param)
    if not isinstance(given, Mapping):
        raise _wrong(param, "an object")
    known = {each.name for each in attrs.fields(StructuredOutputsParams)}
    entries = {name: value for name, value in given.items() if value is not None}
    if unknown := sorted(map(str, entries.keys() - known - _NO_EFFECT)):
        raise RequestError(
            f"{param} has the unknown field {unknown[0][:80]!r}",
            f"Known: {', '.join(sorted(known))}.",
            param=f"{param}.{unknown[0][:80]}",
        )
    if not entries.keys() & known:
        return None
    return StructuredOutputsParams(**{k: v for k, v in entries.items() if k in known}).spec(param)


def spec_of(name: str, value: object, param: str) -> GrammarSpec:
    """Return the spec of one field of `StructuredOutputsParams`. Raises RequestError, which names
    `param`."""
    spec: GrammarSpec = _KINDS[name](value, param)
    return spec


_NO_EFFECT = {"disable_fallback", "disable_additional_properties", "backend"}
"""vLLM's own, which choose among its backends."""


def schema_spec(schema: object, param: str) -> GrammarSpec:
    """Return the spec of a JSON schema, as a value or as text. Raises RequestError."""
    if isinstance(schema, str):
        try:
            schema_value = _json.loads(_short(schema, param))
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"{param} is not valid JSON: {error}", "Send a JSON schema.", param=param
            ) from error
    else:
        schema_value = schema
    if not isinstance(schema_value, Mapping | bool):
        raise _wrong(param, "an object")
    _check_depth(schema_value, param)
    text = schema if isinstance(schema, str) else _dumped(schema_value, param)
    return GrammarSpec(kind="json_schema", text=_short(text, param), param=param)


def _regex(value: object, param: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", text=_short(value, param), param=param)


def _choice(value: object, param: str) -> GrammarSpec:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise _wrong(param, "a list of strings")
    for i, each in enumerate(value):
        if not isinstance(each, str) or not each:
            raise _wrong(f"{param}[{i}]", "a string that is not empty")
    text = _short(_dumped(list(value), param), param)
    return GrammarSpec(kind="choice", text=text, param=param)


def _grammar(value: object, param: str) -> GrammarSpec:
    text = _short(value, param)
    kind = "gbnf" if re.search(r"^\s*[\w-]+\s*::=", text, re.MULTILINE) else "lark"
    return GrammarSpec(kind=kind, text=text, param=param)  # type: ignore[arg-type]  # one of the two


def _json_object(value: object, param: str) -> GrammarSpec:
    if value is not True:
        raise _wrong(param, "true or false")
    return GrammarSpec(kind="json_object", param=param)


def _structural_tag(value: object, param: str) -> GrammarSpec:
    if isinstance(value, Mapping):
        _check_depth(value, param)
        value = _dumped(value, param)
    return GrammarSpec(kind="structural_tag", text=_short(value, param), param=param)


_KINDS: dict[str, Any] = {
    "json": schema_spec,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}


def _dumped(value: Any, param: str) -> str:
    try:
        return _json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"{param} is not JSON: {error}", "Send plain values.", param=param
        ) from error


def _short(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise _wrong(param, "a string")
    if len(value) > MAX_CHARACTERS:
        raise RequestError(
            f"{param} has {len(value)} characters",
            f"The limit is {MAX_CHARACTERS}.",
            param=param,
        )
    return value


def _check_depth(value: object, param: str) -> None:
    """Raise RequestError if a value is nested too deeply. Does not recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            part
            for each in level
            if isinstance(each, Mapping | list | tuple)
            for part in (each.values() if isinstance(each, Mapping) else each)
        ]
    raise RequestError(
        f"{param} is nested more than {MAX_DEPTH} levels deep",
        "Use $defs and $ref, or a flatter schema.",
        param=param,
    )


def _wrong(param: str, expected: str) -> RequestError:
    return RequestError(f"{param} must be {expected}", "Correct its type.", param=param)
