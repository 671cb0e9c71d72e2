"""Sampling parameters as fields of request bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field

from inferno.contracts import GrammarSpec
from inferno.request.processor_calls import ProcessorCall
from inferno.request.sampling_params import Parameter

_JSON: dict[Any, Any] = {
    tuple[str, ...]: str | list[str],
    tuple[int, ...]: list[int],
    tuple[ProcessorCall, ...]: list[dict[str, Any]],
    GrammarSpec: dict[str, Any],
    Mapping[int, float]: dict[str, float],
}
"""The type in a body for a parameter whose Python type JSON lacks."""


def sampling_fields(found: Iterable[Parameter]) -> dict[str, Any]:
    """Make a body's fields for the sampling parameters, None by default."""
    return {p.name: field(default=None, type=json_type(p) | None) for p in found if p.in_body}


def json_type(parameter: Parameter) -> Any:
    """Return the type of a parameter in a body."""
    return _JSON.get(parameter.type, parameter.type)
