"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.errors import RequestError
from inferno.sampling_params import SamplingParams
from inferno.server.chat_shape import ChatShape
from inferno.server.errors import unsupported
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
    tools, ignored_tools = _tools(body, model)
    params = _params(body, model, has_tools=bool(tools))
    prompt = await model.encode_chat(body, tools)
    prepared = Prepared.of(
        data,
        model=name,
        prompts=[prompt.token_ids],
        params=params,
        ignored=(*ignored_tools, *prompt.ignored),
    )
    parallel = body.parallel_tool_calls is not False
    parsers = [
        output_format.parser(prompt.text, tools, parallel=parallel) if output_format else None
        for _ in range(params.n)
    ]
    shape = ChatShape(model, body, prompt.token_ids, parsers)
    return await pipeline.respond(prepared, shape, request.receive)


def _tools(data: ChatRequest, model: ServedModel) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the function tools to offer, and the names of tools of other types, which clients send
    too but no model here can call. Raises RequestError."""
    choice, tools, ignored = data.tool_choice, [], []
    for i, tool in enumerate(data.tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            ignored.append(f"tools[{i}]")
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"tools[{i}] has no function.name",
                "Give it a name.",
                param=f"tools[{i}].function.name",
            )
        else:
            tools.append(tool)
    if isinstance(choice, dict) or choice == "required":
        raise unsupported("tool_choice", "Use auto or none: calls cannot be forced yet.")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            f"invalid tool_choice {choice[:40]!r}", "Use auto or none.", param="tool_choice"
        )
    if choice == "none" or not tools:
        return [], tuple(ignored)
    if model.output_format is None or not model.output_format.has_tools:
        raise unsupported(
            "tools", "This model's tokenizer_config.json does not say how it writes tool calls."
        )
    return tools, tuple(ignored)


def _params(data: ChatRequest, model: ServedModel, *, has_tools: bool) -> SamplingParams:
    if data.top_logprobs and not data.logprobs:
        raise RequestError(
            "top_logprobs needs logprobs", "Set logprobs to true.", param="top_logprobs"
        )
    values: dict[str, Any] = {"max_tokens": None}
    if model.output_format is not None and model.output_format.writes_special(tools=has_tools):
        values["skip_special_tokens"] = False
    values |= sampling_values(data)
    if data.max_completion_tokens is not None:
        values["max_tokens"] = data.max_completion_tokens
    if data.logprobs:
        values["logprobs"] = data.top_logprobs or 0
    return evolve(model.preprocessor.default_params, **values)
