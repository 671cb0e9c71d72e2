"""POST /completion and /infill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import RequestError
from inferno.server.api import (
    CompletionRequest,
    Models,
    Parsed,
    ServedModel,
    Translation,
    in_time,
    post_body,
    prepare_text,
    read,
)
from inferno_llamacpp.fim import FIM, files
from inferno_llamacpp.schema import (
    Generating,
    LlamaCompletionRequest,
    LlamaInfillRequest,
)
from inferno_llamacpp.shape import LlamaShape

_NAMES = {
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "logprobs": "n_probs",
}
"""Fields that have other names in /v1/completions -> llama.cpp's names."""
_SAME = (
    "model",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "stop",
    "stream",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "grammar",
    "json_schema",
)


@post_body(LlamaCompletionRequest)
async def completion(
    data: JSONBody[Parsed[LlamaCompletionRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Continue a prompt, as llama.cpp does."""
    model = await models.find(data.body.model)
    prompt = await _tokens(data.body.prompt, model)
    return await _respond(data, model, prompt, request)


@post_body(LlamaInfillRequest)
async def infill(
    data: JSONBody[Parsed[LlamaInfillRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Write the text between a prefix and a suffix, as llama.cpp does."""
    body = data.body
    model = await models.find(body.model)
    tokenizer = model.needed_tokenizer("input_prefix")
    fim, extra = FIM.of(tokenizer), files(body.input_extra)
    prefix, suffix, begun = body.input_prefix or "", body.input_suffix or "", body.prompt or ""
    count = sum(map(len, (prefix, suffix, begun, *(text for _, text in extra))))
    model.preprocessor.check_characters(count, "input_prefix")
    prompt = await in_time(
        lambda: fim.prompt(tokenizer, prefix, suffix, extra=extra, begun=begun), count, tokenizer
    )
    return await _respond(data, model, prompt, request)


async def _respond(
    parsed: Parsed[Any], model: ServedModel, prompt: list[int], request: Request[Any, Any, Any]
) -> Response[Any]:
    body: Generating = parsed.body
    chat: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    # The completion endpoint's own default is 16, and llama.cpp's is the context.
    limit = body.n_predict
    chat["max_tokens"] = model.preprocessor.max_model_len if limit in (None, -1) else limit
    chat |= {
        "prompt": prompt,
        "repetition_penalty": body.repeat_penalty,
        "seed": None if body.seed == -1 else body.seed,
        "logprobs": body.n_probs or None,
        "logit_bias": _biases(body.logit_bias),
    }
    translation = Translation(chat, _NAMES)
    with translation.naming():
        given = {name: value for name, value in chat.items() if value is not None}
        inner = read(given, CompletionRequest)
        ignored = (*parsed.ignored, *inner.ignored)
        prepared, _ = await prepare_text(Parsed(inner.body, ignored), model)
    shape = LlamaShape(model, body)
    return await model.pipeline.respond(prepared, shape, request.receive)


async def _tokens(prompt: Any, model: ServedModel) -> list[int]:
    """Return the token ids of a prompt: a string, ids, or a list of both. The first string gets
    the tokenizer's own special tokens. Raises RequestError."""
    parts = prompt if isinstance(prompt, list) else [prompt]
    if not parts:
        raise RequestError("prompt is empty", "Send at least one token.", param="prompt")
    for i, part in enumerate(parts):
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise RequestError(
                "prompt is neither a string nor a list of strings and token ids",
                "Send one prompt in a request.",
                param=f"prompt[{i}]" if isinstance(prompt, list) else "prompt",
            )
    count = sum(len(part) for part in parts if isinstance(part, str))
    if count:
        model.preprocessor.check_characters(count, "prompt")

    def work() -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, int):
                ids.append(part)
            else:
                tokenizer = model.needed_tokenizer("prompt")
                ids += tokenizer.encode(part, add_special_tokens=i == 0)
        return ids

    return await in_time(work, count, model.tokenizer)


def _biases(given: Any) -> Mapping[str, Any] | None:
    """Return biases as OpenAI writes them. Raises RequestError."""
    if given is None or isinstance(given, dict):
        return given
    pairs = given if isinstance(given, list) else [given]
    by_token: dict[str, Any] = {}
    for i, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int):
            raise RequestError(
                f"logit_bias[{i}] is not a pair of token id and bias",
                "Send [[15043, 1.0]], with token ids (POST /tokenize).",
                param=f"logit_bias[{i}]",
            )
        by_token[str(pair[0])] = -100 if pair[1] is False else pair[1]
    return by_token
