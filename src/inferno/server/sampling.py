"""From a request body to `SamplingParams`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferno.core.sampling_params import Parameter, parameters
from inferno.errors import RequestError
from inferno.server.errors import unsupported
from inferno.server.schema import GenerationRequest

_PARAMETERS = parameters()


def given(data: GenerationRequest, known: Iterable[Parameter] = _PARAMETERS) -> dict[str, Any]:
    """The sampling parameters that a body names, by `SamplingParams`' names, and not checked yet:
    `SamplingParams` does. Raises RequestError."""
    found = {
        p.name: _biases(p.name, value) if p.type == Mapping[int, float] else value
        for p in known
        if p.in_body and (value := getattr(data, p.name)) is not None
    }
    if data.stream and "prompt_logprobs" in found:
        raise unsupported("prompt_logprobs", "They come in one piece: leave stream out.")
    return found


def _biases(param: str, raw: Mapping[str, float]) -> dict[int, float]:
    try:
        biases = {int(token): bias for token, bias in raw.items()}
    except ValueError as error:
        raise RequestError(
            f"the keys of {param} must be token ids", "Find them with /tokenize.", param=param
        ) from error
    if any(not -100 <= bias <= 100 for bias in biases.values()):
        raise RequestError(f"{param} is out of range", "Biases go from -100 to 100.", param=param)
    return biases
