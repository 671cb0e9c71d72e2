"""Finds the part of a JSON schema that does not compile: llguidance does not name it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve

from inferno.contracts import GrammarSpec

_MAX_TRIES = 100
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_ONE = ("items", "additionalProperties", "not", "contains", "if", "then", "else")
_MANY = ("prefixItems", "anyOf", "oneOf", "allOf")


def blamed(spec: GrammarSpec, error: str, error_of: Callable[[GrammarSpec], str]) -> str:
    """Return the path to the smallest subschema that causes the same error by itself."""
    if spec.kind != "json_schema":
        return ""
    value, path, tries = json.loads(spec.text), "", _MAX_TRIES
    shared = {name: value[name] for name in ("$defs", "definitions") if name in value}
    while (culprit := _guilty(spec, value, shared, error, error_of, tries)) is not None:
        step, value, tries = culprit
        path += step
    return path.lstrip(".")


def _guilty(
    spec: GrammarSpec,
    schema: Mapping[str, Any],
    shared: Mapping[str, Any],
    error: str,
    error_of: Callable[[GrammarSpec], str],
    tries: int,
) -> tuple[str, Mapping[str, Any], int] | None:
    """Return the first part of a schema with that error: its step of the path, the part, and the
    tries left."""
    for step, part in _parts(schema):
        if (tries := tries - 1) < 0:
            return None
        alone = part if part.keys() & shared.keys() or step[1:] in shared else {**shared, **part}
        if error_of(evolve(spec, text=json.dumps(alone))) == error:
            return step, part, tries
    return None


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the subschemas, each with its step of a path."""
    for name in _BY_NAME:
        if isinstance(schema.get(name), Mapping):
            yield from (
                (f".{name}.{key}", part)
                for key, part in schema[name].items()
                if isinstance(part, Mapping)
            )
    for name in _ONE:
        if isinstance(schema.get(name), Mapping):
            yield f".{name}", schema[name]
    for name in _MANY:
        if isinstance(schema.get(name), list):
            yield from (
                (f".{name}[{i}]", part)
                for i, part in enumerate(schema[name])
                if isinstance(part, Mapping)
            )
