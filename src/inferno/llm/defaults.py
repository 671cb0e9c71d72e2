"""The sampling parameters of requests that name none, from what a checkpoint says."""

from __future__ import annotations

from typing import Any

import attrs

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError, RequestError
from inferno.request.sampling_params import INTERACTIVE, SamplingParams, parameters

DEFAULT_MAX_TOKENS = 256
"""`max_tokens` if the caller gives no parameters and the checkpoint no `max_new_tokens`."""


def default_params(assets: TextAssets) -> SamplingParams:
    """A checkpoint's default sampling parameters. `do_sample: false` means greedy, as in
    transformers."""
    config = assets.generation_config
    names = [p.name for p in parameters() if p.in_generation_config]
    values = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("do_sample") is False:
        values["temperature"] = 0.0
    try:
        return SamplingParams(
            max_tokens=config.get("max_new_tokens") or DEFAULT_MAX_TOKENS, **values
        )
    except (RequestError, TypeError) as error:
        raise CheckpointError(f"generation_config.json: {error}", "Correct the file.") from error


def interactive_params(assets: TextAssets) -> SamplingParams:
    """The sampling parameters for a person at a terminal or at the page: the checkpoint's. If it
    says nothing of temperature, top_k, top_p or min_p, drawing from the whole vocabulary would make
    a small model talk rubbish: then they are what llama.cpp and Ollama take. A person can stop an
    answer: it ends by itself or with the context, unless the checkpoint limits it."""
    values: dict[str, Any] = {"max_tokens": assets.generation_config.get("max_new_tokens") or None}
    if not says_how_to_sample(assets):
        values |= INTERACTIVE
    return attrs.evolve(default_params(assets), **values)


def says_how_to_sample(assets: TextAssets) -> bool:
    """Whether a checkpoint says which tokens to draw from."""
    config = assets.generation_config
    named = any(config.get(name) is not None for name in INTERACTIVE)
    return named or config.get("do_sample") is False


def named_values(params: SamplingParams) -> dict[str, float]:
    """Return those of the parameters that a checkpoint may set, by name."""
    return {p.name: getattr(params, p.name) for p in parameters() if p.in_generation_config}
