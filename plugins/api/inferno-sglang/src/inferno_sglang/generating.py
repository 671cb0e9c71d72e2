"""POST /generate."""

from __future__ import annotations

from typing import Any

from attrs import fields_dict
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
    post_body,
    prepare_text,
    read,
)
from inferno_sglang.running import running_of
from inferno_sglang.schema import GenerateRequest, SamplingOptions
from inferno_sglang.shape import GenerateShape, Wanted

_MAX_NEW_TOKENS = 128
"""SGLang's default."""
_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "json_schema": "guided_json",
    "regex": "guided_regex",
    "ebnf": "guided_grammar",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
}
"""Options that have other names in /v1/completions."""
_BACK = {
    **{_NAMES.get(name, name): f"sampling_params.{name}" for name in fields_dict(SamplingOptions)},
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "model": "lora_path",
}


@post_body(GenerateRequest)
async def generate(
    data: JSONBody[Parsed[GenerateRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Continue a prompt or several, as SGLang does."""
    body = data.body
    model = await models.find(body.lora_path, stream=body.stream)
    given, ignored = _completion(body)
    prompt = "text" if body.input_ids is None else "input_ids"
    with Translation(given, {**_BACK, "prompt": prompt}).naming():
        inner = read(given, CompletionRequest)
        ignored = (*data.ignored, *ignored, *inner.ignored)
        prepared, _ = await prepare_text(Parsed(inner.body, ignored), model)
    shape = GenerateShape(model, _wanted(body, model), running_of(request), body.rid)
    shape.begin_with(prepared)
    return await model.pipeline.respond(prepared, shape, request.receive)


def _completion(body: GenerateRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the body of a text completion, and the fields without effect. Raises RequestError."""
    if (body.text is None) == (body.input_ids is None):
        raise RequestError(
            "the prompt is neither text nor input_ids, or both",
            "Send one of them.",
            param="input_ids",
        )
    try:
        options = read(body.sampling_params or {}, SamplingOptions)
    except RequestError as error:
        if error.param is not None:
            error.param = f"sampling_params.{error.param}"
        raise
    given: dict[str, Any] = {
        "prompt": body.text if body.text is not None else body.input_ids,
        "model": body.lora_path,
        "stream": body.stream,
        "priority": body.priority,
        "max_tokens": _MAX_NEW_TOKENS,
    }
    for name in fields_dict(SamplingOptions):
        if (value := getattr(options.body, name)) is not None and (name, value) != ("top_k", -1):
            given[_NAMES.get(name, name)] = value
    if body.return_logprob:
        given["logprobs"] = top = body.top_logprobs_num or 0
        if _start(body) >= 0:
            given["prompt_logprobs"] = top
    given = {name: value for name, value in given.items() if value is not None}
    return given, tuple(f"sampling_params.{name}" for name in options.ignored)


def _wanted(body: GenerateRequest, model: ServedModel) -> Wanted:
    several = body.text if body.text is not None else body.input_ids
    return Wanted(
        listed=isinstance(several, list) and bool(several) and not isinstance(several[0], int),
        scores=bool(body.return_logprob),
        top=body.top_logprobs_num or 0,
        start=_start(body),
    )


def _start(body: GenerateRequest) -> int:
    """Return the first token of the prompt that is scored; -1: none."""
    return -1 if body.logprob_start_len is None else body.logprob_start_len
