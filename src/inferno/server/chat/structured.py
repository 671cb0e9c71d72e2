"""Structured output in request bodies: the fields of OpenAI, vLLM and llama.cpp for it, as one
`GrammarSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from inferno.contracts import GrammarSpec
from inferno.errors import RequestError
from inferno.request.structured_outputs import grammar_spec, schema_spec, spec_of

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
}
"""vLLM's older fields and llama.cpp's, and what they are in `structured_outputs`."""
_TYPES = "text, json_object, json_schema, structural_tag"


@frozen(kw_only=True)
class StructuredFields:
    """The fields of bodies that ask for structured output, besides `structured_outputs`."""

    response_format: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    grammar: str | None = None
    json_schema: str | dict[str, Any] | None = None

    def spec(self, vllm: Mapping[str, Any] | None) -> GrammarSpec | None:
        """Return what the output must match; `vllm` is the body's `structured_outputs`. Raises
        RequestError if several fields ask for it."""
        specs: dict[str, GrammarSpec | None] = {"structured_outputs": grammar_spec(vllm)}
        if self.response_format is not None:
            specs["response_format"] = _response_format(self.response_format)
        for name, kind in _GUIDED.items():
            if (value := getattr(self, name)) not in (None, ""):
                specs[name] = spec_of(kind, value, name)
        given = {name: spec for name, spec in specs.items() if spec is not None}
        if len(given) > 1:
            names = list(given)
            raise RequestError(
                f"{' and '.join(names)} each ask for structured output",
                "Send one of them.",
                param=names[1],
            )
        spec = next(iter(given.values()), None)
        if spec is not None and self.guided_whitespace_pattern is not None:
            spec = evolve(spec, whitespace=self.guided_whitespace_pattern)
        return spec


def _response_format(given: Mapping[str, Any]) -> GrammarSpec | None:
    """Read OpenAI's `response_format`, and llama.cpp's schema beside `json_object`."""
    kind, at = given.get("type"), "response_format"
    if kind in ("text", None) and not given.keys() - {"type"}:
        return None
    if kind == "json_object":
        if (schema := given.get("schema")) is not None:
            return schema_spec(schema, f"{at}.schema")
        return GrammarSpec(kind="json_object", param=at)
    if kind == "json_schema":
        body = given.get("json_schema")
        if not isinstance(body, Mapping) or body.get("schema") is None:
            raise RequestError(
                f"{at}.json_schema has no schema",
                'Send {"name": string, "schema": object}.',
                param=f"{at}.json_schema.schema",
            )
        return schema_spec(body["schema"], f"{at}.json_schema.schema")
    if kind == "structural_tag":
        return spec_of("structural_tag", given, at)
    raise RequestError(
        f"{at} has the unknown type {str(kind)[:40]!r}", f"Known: {_TYPES}.", param=f"{at}.type"
    )
