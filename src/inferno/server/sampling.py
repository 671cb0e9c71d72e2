"""Reads sampling parameters from a request body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferno.core.sampling_params import Parameter, parameters
from inferno.errors import RequestError
from inferno.server.errors import unsupported
from inferno.server.schema import GenerationRequest

_PARAMETERS = parameters()


def given(data: GenerationRequest, known: Iterable[Parameter] = _PARAMETERS) -> dict[str, Any]:
    """Return the sampling parameters given in a body, by `SamplingParams`' names. `SamplingParams`
    checks their values. Raises RequestError."""
    found = {
        p.name: _biases(p.name, value) if p.type == Mapping[int, float] else value
        for p in known
        if p.in_body and (value := getattr(data, p.name)) is not None
    }
    if data.stream and "prompt_logprobs" in found:
        raise unsupported("prompt_logprobs", "They are not streamed: leave stream out.")
    return found


def _biases(param: str, raw: Mapping[str, float]) -> dict[int, float]:
    try:
        biases = {int(token): bias for token, bias in raw.items()}
    except ValueError as error:
        raise RequestError(
            f"the keys of {param} must be token ids", "Find them with /tokenize.", param=param
        ) from error
    if any(not -100 <= bias <= 100 for bias in biases.values()):
        raise RequestError(
            f"{param} is out of range", "It must be between -100 and 100.", param=param
        )
    return biases
