"""The sampling parameters of requests that name none, from what a checkpoint says."""

from __future__ import annotations

import attrs

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError, RequestError
from inferno.sampling_params import SamplingParams, parameters

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
    """A checkpoint's sampling parameters for a person at a terminal, who can stop an answer: it
    ends by itself or with the context, unless the checkpoint says otherwise."""
    limit = assets.generation_config.get("max_new_tokens") or None
    return attrs.evolve(default_params(assets), max_tokens=limit)
