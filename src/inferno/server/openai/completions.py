"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve
from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import RequestError
from inferno.request.sampling_params import SamplingParams
from inferno.server.chat.translate import with_headers
from inferno.server.fields.schema import CompletionRequest, sampling_values
from inferno.server.generate.generation import Prepared
from inferno.server.hosting.models import Models
from inferno.server.hosting.served_model import ServedModel, in_time
from inferno.server.http.errors import unsupported
from inferno.server.http.parsing import Parsed, post_body
from inferno.server.openai.text_shape import TextShape

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""
_MAX_OUTPUTS = 1024
"""Maximum of prompts times n in one request."""


@post_body(CompletionRequest)
async def completions(
    data: JSONBody[Parsed[CompletionRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Continue a string, or token ids."""
    body = data.body
    model = await models.find(body.model, stream=body.stream)
    prepared, texts = await prepare_text(with_headers(data, request.headers), model)
    reports_prompt = "prompt_logprobs" in sampling_values(body)
    n = prepared.params.n
    shape = TextShape(model, body, texts, list(prepared.prompts), n, reports_prompt=reports_prompt)
    return await model.pipeline.respond(prepared, shape, request.receive)


async def prepare_text(
    parsed: Parsed[CompletionRequest], model: ServedModel
) -> tuple[Prepared, list[str]]:
    """Check the request and tokenize its prompts; return them as strings too (empty unless
    echoed). Raises RequestError."""
    body = parsed.body
    sent = sampling_values(body)
    params = _params(body, sent, model)
    texts, prompts = await _prompts(body, model, params)
    prepared = Prepared.of(
        parsed,
        model=model.name(body.model),
        prompts=prompts,
        params=params,
        prompt_only=sent.get("max_tokens") == 0,
    )
    return prepared, texts


def _params(data: CompletionRequest, sent: Mapping[str, Any], model: ServedModel) -> SamplingParams:
    if data.best_of is not None and data.best_of != sent.get("n", 1):
        raise unsupported("best_of", "Use n and choose among the outputs.")
    if data.stream and data.echo and data.logprobs is not None:
        raise unsupported(
            "echo", "Prompt logprobs are not streamed: leave stream out, or logprobs."
        )
    values = {"max_tokens": _DEFAULT_MAX_TOKENS, **sent, "logprobs": data.logprobs}
    if values["max_tokens"] == 0 and data.echo:
        values["max_tokens"] = 1  # the engine always samples one; `Generation` drops it
    if data.echo and data.logprobs is not None:
        values["prompt_logprobs"] = max(data.logprobs, sent.get("prompt_logprobs", 0))
    return evolve(model.preprocessor.default_params, **values)


async def _prompts(
    data: CompletionRequest, model: ServedModel, params: SamplingParams
) -> tuple[list[str], list[tuple[int, ...]]]:
    """Return each prompt as a string (empty unless echoed) and as unchecked token ids. Raises
    RequestError."""
    raw: Any = data.prompt
    prompts = [raw] if isinstance(raw, str) or isinstance(raw[0], int) else raw
    special = data.add_special_tokens is not False
    if len(prompts) * params.n > _MAX_OUTPUTS:
        raise RequestError(
            "too many prompts", f"Prompts times n must be at most {_MAX_OUTPUTS}.", param="prompt"
        )
    for prompt in prompts:
        if isinstance(prompt, str) and model.tokenizer is not None:
            model.preprocessor.check_characters(len(prompt), "prompt")

    def encode_one(prompt: str | list[int]) -> tuple[str, tuple[int, ...]]:
        if isinstance(prompt, str):
            ids = model.needed_tokenizer("prompt").encode(prompt, add_special_tokens=special)
            return prompt, tuple(ids)
        if not data.echo or model.tokenizer is None:
            return "", tuple(prompt)
        return model.tokenizer.decode(prompt, skip_special_tokens=False), tuple(prompt)

    pairs = await in_time(
        lambda: [encode_one(p) for p in prompts], sum(map(len, prompts)), model.tokenizer
    )
    if params.truncate_prompt_tokens is not None:
        pairs = [_truncated(ids, model, params) for _, ids in pairs]
    return [text for text, _ in pairs], [ids for _, ids in pairs]


def _truncated(
    ids: tuple[int, ...], model: ServedModel, params: SamplingParams
) -> tuple[str, tuple[int, ...]]:
    prompt, tokenizer = model.preprocessor.truncated(ids, params), model.tokenizer
    return "" if tokenizer is None else tokenizer.decode(prompt, skip_special_tokens=False), prompt
