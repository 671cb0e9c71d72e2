"""Validates a request before it is queued, so that the scheduler and the sampler need not.

`llm.preprocessor` has checked prompts already, with messages that name the caller's field. This
check also covers other clients of the engine.
"""

from __future__ import annotations

import math
from typing import Protocol

from inferno.errors import CONTEXT_LENGTH_EXCEEDED, RequestError
from inferno.request.requests import Request


class Limits(Protocol):
    """What a model takes: a plan's fields."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def whole_prompts(self) -> bool: ...
    @property
    def images(self) -> object | None:
        """None: the model sees none."""
        ...

    @property
    def audio(self) -> object | None:
        """None: the model hears none."""
        ...


def validate_request(request: Request, limits: Limits) -> None:
    """Raise RequestError unless the model does what is asked, the prompt fits the context, and
    every token id is the model's."""
    length, params = len(request.token_ids), request.params
    vocab_size, output = limits.vocab_size, int(request.pooling is None)
    if not length:
        raise RequestError("the prompt is empty", "Send at least one token.", param="prompt")
    if output and limits.whole_prompts:
        raise RequestError("an encoder generates no text", "Ask for an embedding.", param="model")
    if length + output > limits.max_model_len:
        raise RequestError(
            f"the prompt has {length} tokens, but the context holds {limits.max_model_len}"
            + (", including at least one of output" if output else ""),
            "Shorten the prompt.",
            param="prompt",
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    _check_images(request, limits)
    for param, ids in (
        ("prompt", request.token_ids),
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", params.logit_bias),
        ("logprob_token_ids", params.logprob_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("bad_words", [i for word in request.bad_words for i in word]),
    ):
        lowest = min(ids, default=0)
        bad = lowest if lowest < 0 else max(ids, default=0)
        if not 0 <= bad < vocab_size:
            raise RequestError(
                f"{param} contains the invalid token id {bad}",
                f"Use token ids from 0 to {vocab_size - 1}.",
                param=param,
            )
    for token_id, bias in params.logit_bias.items():
        if math.isnan(bias) or bias == math.inf:
            raise RequestError(
                f"logit_bias of token {token_id} is {bias}",
                "Use a finite number, or -inf to ban the token.",
                param="logit_bias",
            )


def _check_images(request: Request, limits: Limits) -> None:
    """Raise RequestError for images of a model that sees none, audio of one that hears none, and
    for places that are not one after the other within the prompt."""
    end, remedy = 0, "Make requests by `Preprocessor.prepare`."
    for image in request.images:
        if image.medium == "image" and limits.images is None:
            raise RequestError("this model sees no images", "Send text only.", param="prompt")
        if image.medium == "audio" and limits.audio is None:
            raise RequestError("this model hears no audio", "Send text only.", param="prompt")
        patches = image.grid[0] * image.grid[1] * image.grid[2]
        inside = end <= image.start and image.stop <= len(request.token_ids)
        if not inside or image.count < 1 or patches < 1 or len(image.digest) != 16:
            raise RequestError(
                "the places of the prompt's images are wrong", remedy, param="prompt"
            )
        end = image.stop
