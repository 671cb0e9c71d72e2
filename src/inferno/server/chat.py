"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.core.sampling_params import SamplingParams
from inferno.errors import RequestError
from inferno.server.chat_shape import ChatShape
from inferno.server.conversation import encode_chat, tools_to_offer
from inferno.server.generation import Prepared
from inferno.server.model import ServedModel
from inferno.server.parsing import CattrsDTO, Parsed
from inferno.server.pipeline import Pipeline
from inferno.server.schema import ERROR_RESPONSES, ChatRequest, sampling_values


@post(
    "/v1/chat/completions",
    status_code=200,
    dto=CattrsDTO[ChatRequest],
    return_dto=None,
    responses=ERROR_RESPONSES,
)
async def chat_completions(
    data: JSONBody[Parsed[ChatRequest]],
    request: Request[Any, Any, Any],
    model: NamedDependency[ServedModel],
    pipeline: NamedDependency[Pipeline],
) -> Response[Any]:
    """Generate the next message of a conversation."""
    body, output_format = data.body, model.output_format
    name = model.name(body.model)
    tools, ignored_tools = tools_to_offer(body, can_call=output_format.has_tools)
    params = _params(body, model)
    prompt = await encode_chat(model, body, tools)
    prepared = Prepared.of(
        data,
        model=name,
        prompts=[prompt.token_ids],
        params=params,
        ignored=(*ignored_tools, *prompt.ignored),
    )
    parallel = body.parallel_tool_calls is not False
    parsers = [output_format.parser(prompt.text, tools, parallel=parallel) for _ in range(params.n)]
    shape = ChatShape(model, body, prompt.token_ids, parsers)
    return await pipeline.respond(prepared, shape, request.receive)


def _params(data: ChatRequest, model: ServedModel) -> SamplingParams:
    if data.top_logprobs and not data.logprobs:
        raise RequestError(
            "top_logprobs needs logprobs", "Set logprobs to true.", param="top_logprobs"
        )
    values: dict[str, Any] = {"max_tokens": None}
    if model.output_format.writes_special:
        values["skip_special_tokens"] = False
    values |= sampling_values(data)
    if data.max_completion_tokens is not None:
        values["max_tokens"] = data.max_completion_tokens
    if data.logprobs:
        values["logprobs"] = data.top_logprobs or 0
    return evolve(model.preprocessor.default_params, **values)
