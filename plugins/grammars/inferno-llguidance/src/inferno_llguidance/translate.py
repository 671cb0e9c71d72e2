"""Translates specs to llguidance's own grammars."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from inferno.contracts import GrammarSpec
from inferno.errors import GrammarError

MAX_MULTIPLE = 10_000
"""Limit of `multipleOf`: llguidance makes a state for each remainder."""


def llguidance_grammar(spec: GrammarSpec) -> str:
    """Return a spec as a grammar for `llguidance.LLMatcher`. Raises GrammarError."""
    grammar: str = _KINDS[spec.kind](spec)
    return grammar


def _json_schema(spec: GrammarSpec) -> str:
    schema = loaded(spec.text)
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"a schema is {_kind(schema)}", "Send an object.")
    if schema is False:
        raise GrammarError("the schema false matches nothing", "Send an object, or true.")
    _check_multiples(schema)
    # The text, not the value: numbers keep their precision.
    text = spec.text if isinstance(schema, dict) else "{}"
    options: Any = spec.json_options
    grammar: str = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=options)
    return grammar


def _json_object(spec: GrammarSpec) -> str:
    return _json_schema(
        GrammarSpec(kind="json_schema", text='{"type": "object"}', whitespace=spec.whitespace)
    )


def _regex(spec: GrammarSpec) -> str:
    text = spec.text
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise GrammarError("the regular expression ends with a backslash", "Escape it.")
    grammar: str = llguidance.LLMatcher.grammar_from_regex(text)
    return grammar


def _choice(spec: GrammarSpec) -> str:
    choices = loaded(spec.text)
    if not isinstance(choices, list) or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("choices must be a list of strings that are not empty")
    if not choices:
        raise GrammarError("there are no choices", "Give at least one.")
    # One lexeme: as rules, each choice would be an item of the parser, which has at most 2 000.
    return _lark("start: CHOICE\nCHOICE: " + " | ".join(map(_literal, dict.fromkeys(choices))))


def _gbnf(spec: GrammarSpec) -> str:
    try:
        return _lark(gbnf_to_lark(spec.text))
    except (Exception, RecursionError) as error:
        raise GrammarError(f"invalid GBNF: {str(error)[:300]}") from error


def _structural_tag(spec: GrammarSpec) -> str:
    """vLLM's {"type": "structural_tag", "structures": [{begin, schema, end}], "triggers": [...]}:
    free text, in which what follows a trigger is one of the structures that begin with it."""
    tag = loaded(spec.text)
    structures = tag.get("structures") if isinstance(tag, dict) else None
    triggers = tag.get("triggers") if isinstance(tag, dict) else None
    if not structures or not triggers or not isinstance(structures, list):
        raise GrammarError(
            "a structural tag needs structures and triggers",
            'Each structure is {"begin": string, "schema": {...}, "end": string}.',
        )
    rules = []
    for i, each in enumerate(structures):
        begin, end = each.get("begin"), each.get("end")
        if not isinstance(begin, str) or not isinstance(end, str):
            raise GrammarError("begin and end must be strings", path=f"structures[{i}]")
        trigger = next(
            (t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), ""
        )
        if not trigger:
            raise GrammarError("begin starts with no trigger", path=f"structures[{i}].begin")
        schema = each.get("schema", {})
        _check_multiples(schema)
        value = _embedded(schema, spec.whitespace)
        body = [_literal(begin[len(trigger) :]), f"%json {value}", _literal(end)]
        rules.append(f"begin_{i}[lazy]: /(?s:.*)/ {_literal(trigger)}")
        rules.append(f"tag_{i}: begin_{i} {' '.join(part for part in body if part)}")
    tags = " | ".join(f"tag_{i}" for i in range(len(structures)))
    return _lark("\n".join([f"start: ({tags})* rest", "rest: /(?s:.*)/", *rules]))


def _embedded(schema: Any, whitespace: str | None) -> str:
    """Return a schema as a part of a grammar."""
    text = json.dumps(schema)
    if not isinstance(schema, dict):
        return text
    spec = GrammarSpec(kind="json_schema", text=text, whitespace=whitespace)
    return json.dumps({"x-guidance": spec.embedded_json_options, **schema})


def _lark(text: str) -> str:
    grammar: str = llguidance.LLMatcher.grammar_from_lark(text)
    return grammar


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


_KINDS = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "lark": lambda spec: _lark(spec.text),
    "gbnf": _gbnf,
    "structural_tag": _structural_tag,
}


def loaded(text: str) -> Any:
    """Parse JSON. Raises GrammarError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"not valid JSON: {error}") from error


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def _check_multiples(schema: Any) -> None:
    """Raise GrammarError if the values of `multipleOf` need too many states together."""
    total, stack = 1, [(schema, "")]
    while stack:
        value, path = stack.pop()
        if isinstance(value, Mapping):
            number = value.get("multipleOf")
            if isinstance(number, int | float) and number > 0:
                total = lcm(total, _digits_of(number))
                if total > MAX_MULTIPLE:
                    raise GrammarError(
                        f"multipleOf {number} is too large",
                        f"The least common multiple of all must be at most {MAX_MULTIPLE}.",
                        path=f"{path}.multipleOf".lstrip("."),
                    )
            stack += [(child, f"{path}.{key}") for key, child in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            stack += [(child, f"{path}[{i}]") for i, child in enumerate(value)]


def _digits_of(number: float) -> int:
    """Return a number without its decimal point: 25 for 0.25."""
    digits = f"{number:.15g}".replace(".", "").lstrip("0").partition("e")[0]
    return int(digits or 1)
