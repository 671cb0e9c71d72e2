"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from attrs import asdict, define, field
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.core.types import Logprobs, SamplingParams
from inferno.errors import RequestError
from inferno.server import logprobs
from inferno.server.chunks import Chunks, encode, members
from inferno.server.errors import frame, unsupported
from inferno.server.events import Events, on_disconnect
from inferno.server.generation import Job
from inferno.server.output_parser import Parser, Piece
from inferno.server.parsing import CattrsDTO
from inferno.server.schema import ERROR_RESPONSES, ChatRequest, Message, TokenizeRequest
from inferno.server.service import Service, check_salt, sampling

_ROLES = ("system", "developer", "user", "assistant", "tool")
_LONG = 20_000
"""Characters of conversation that are worth a thread: tokenizing them would hold up every
stream."""


@post(
    "/v1/chat/completions",
    status_code=200,
    dto=CattrsDTO[ChatRequest],
    return_dto=None,
    responses=ERROR_RESPONSES,
)
async def chat_completions(
    data: JSONBody[ChatRequest], request: Request[Any, Any, Any], service: NamedDependency[Service]
) -> Response[Any]:
    """A chat model's next message."""
    model = service.model(data.model)
    tools = _tools(data, service, request.state.ignored)
    _check(data)
    prompt, ids = await encode_chat(service, data, tools, request.state.ignored)
    params = _params(data, service)
    llm = service.llm
    job = Job(
        llm,
        service.gate,
        service.metrics,
        [ids],
        params,
        data.priority or 0,
        check_salt(data.cache_salt),
    )
    parallel = data.parallel_tool_calls is not False
    parsers = [service.dialect.parser(prompt, tools, parallel=parallel) for _ in range(params.n)]
    choices = [_Choice(service, i, parser) for i, parser in enumerate(parsers)]
    ignored = list(dict.fromkeys(request.state.ignored))
    job.open()
    if data.stream:
        chunks = Chunks("chat.completion.chunk", f"chatcmpl-{job.id}", model, job, data, ignored)
        return Events(
            _frames(job, choices, chunks, data),
            abort=job.abort,
            close=job.close,
            ping_seconds=service.ping_seconds,
        )
    try:
        async with on_disconnect(request.receive, job.abort):
            async for deltas in job.deltas():
                for delta in deltas:
                    choices[delta.index].take(delta)
    finally:
        job.close()
    return Response(_whole(job, choices, data, model, ignored), media_type="application/json")


async def encode_chat(
    service: Service,
    data: ChatRequest | TokenizeRequest,
    tools: list[dict[str, Any]],
    ignored: list[str],
) -> tuple[str, tuple[int, ...]]:
    """The rendered conversation, and its token ids. Raises RequestError."""
    tokenizer, messages = (
        service.llm.tokenizer,
        [_message(m, i) for i, m in enumerate(data.messages or ())],
    )
    if tokenizer is None:
        raise RequestError(
            "this model has no tokenizer", "Send token ids to /v1/completions.", param="messages"
        )
    if data.continue_final_message and data.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other",
            "Leave one out.",
            param="add_generation_prompt",
        )
    options: dict[str, Any] = {"add_generation_prompt": data.add_generation_prompt is not False}
    if data.continue_final_message:
        options = {"add_generation_prompt": False, "continue_final_message": True}
    options = _template_options(service, data, bool(tools), ignored) | options

    def work() -> tuple[str, tuple[int, ...]]:
        text = service.llm.render_chat(messages, tools=tools or None, **options)
        special = isinstance(data, TokenizeRequest) and bool(data.add_special_tokens)
        return text, tuple(tokenizer.encode(text, add_special_tokens=special))

    long = sum(len(str(m.get("content"))) for m in messages) > _LONG
    return await asyncio.to_thread(work) if long else work()


def _message(message: Message, i: int) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise RequestError(
            f"messages[{i}] has role {message.role[:40]!r}",
            f"Roles are {', '.join(_ROLES)}.",
            param=f"messages[{i}].role",
        )
    plain = {name: value for name, value in asdict(message).items() if value is not None}
    for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(
            part.get("text"), str
        ):
            raise RequestError(
                f"messages[{i}].content[{j}] is of type {str(part.get('type'))[:40]!r}",
                "This server takes text parts only.",
                param=f"messages[{i}].content[{j}]",
                code="unsupported_parameter",
            )
    # Templates know one name of the two; whichever the client sent back is meant.
    reasoning = plain.pop("reasoning", None) or plain.get("reasoning_content")
    return plain | ({"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {})


def _template_options(
    service: Service, data: ChatRequest | TokenizeRequest, has_tools: bool, ignored: list[str]
) -> dict[str, Any]:
    source, options = (
        service.llm.template.source(tools=has_tools),
        dict(data.chat_template_kwargs or {}),
    )
    ignored += [f"chat_template_kwargs.{name[:80]}" for name in options if name not in source][:20]
    effort = data.reasoning_effort if isinstance(data, ChatRequest) else None
    if effort is None:
        return options
    if "reasoning_effort" in source:
        return {"reasoning_effort": effort} | options
    if "enable_thinking" in source:
        return {"enable_thinking": effort != "none"} | options
    if effort != "none":
        raise unsupported(
            "reasoning_effort", "This model's chat template has no such switch: leave it out."
        )
    return options


def _tools(data: ChatRequest, service: Service, ignored: list[str]) -> list[dict[str, Any]]:
    """The function tools to offer. Clients offer tools of other types too; those the model cannot
    call are named as ignored. Raises RequestError."""
    choice, tools = data.tool_choice, []
    for i, tool in enumerate(data.tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            ignored.append(f"tools[{i}]")
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"tools[{i}] has no function.name", "Name it.", param=f"tools[{i}].function.name"
            )
        else:
            tools.append(tool)
    if isinstance(choice, dict) or choice == "required":
        raise unsupported("tool_choice", "Use auto or none: calls cannot be forced yet.")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            f"tool_choice is {choice[:40]!r}", "Use auto or none.", param="tool_choice"
        )
    if choice == "none" or not tools:
        return []
    if not service.dialect.has_tools:
        raise unsupported(
            "tools", "This model's tokenizer_config.json does not say how it writes tool calls."
        )
    return tools


def _check(data: ChatRequest) -> None:
    if data.top_logprobs and not data.logprobs:
        raise RequestError(
            "top_logprobs without logprobs", "Set logprobs to true.", param="top_logprobs"
        )
    if data.stream and data.prompt_logprobs is not None:
        raise unsupported("prompt_logprobs", "They come in one piece: leave stream out.")


def _params(data: ChatRequest, service: Service) -> SamplingParams:
    limit = data.max_tokens if data.max_completion_tokens is None else data.max_completion_tokens
    return sampling(
        data,
        service.llm.default_params,
        max_tokens=limit,
        logprobs=(data.top_logprobs or 0) if data.logprobs else None,
        prompt_logprobs=data.prompt_logprobs,
        special=service.dialect.writes_special,
    )


@define
class _Choice:
    """One output so far."""

    service: Service
    index: int
    parser: Parser | None
    content: list[str] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    calls: list[Piece] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    logprobs: list[Logprobs] = field(factory=list)
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    finish: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: Any) -> list[Piece]:
        """What the delta adds."""
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        pieces = self._pieces(delta)
        for piece in pieces:
            if piece.kind == "tool":
                self.calls.append(piece)
            else:
                (self.content if piece.kind == "content" else self.reasoning).append(piece.text)
        if delta.finish_reason is not None:
            self.stop_reason = delta.stop_reason
            self.finish = (
                "tool_calls"
                if self.calls and delta.finish_reason == "stop"
                else delta.finish_reason
            )
        return pieces

    def reasoning_tokens(self) -> int | None:
        """By encoding the text again; None where the model's reasoning cannot be told apart."""
        tokenizer = self.service.llm.tokenizer
        if self.parser is None or tokenizer is None:
            return None
        return (
            len(tokenizer.encode("".join(self.reasoning), add_special_tokens=False))
            if self.reasoning
            else 0
        )

    def message(self) -> dict[str, Any]:
        content = "".join(self.content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            message |= dict.fromkeys(self.service.reasoning_fields, "".join(self.reasoning))
        if self.calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.text}}
                for c in self.calls
            ]
        return message

    def _pieces(self, delta: Any) -> list[Piece]:
        if self.parser is None:
            return [Piece("content", delta.text)] if delta.text else []
        pieces = self.parser.feed(delta.text) if delta.text else []
        return pieces + self.parser.finish() if delta.finish_reason is not None else pieces


def _whole(
    job: Job, choices: list[_Choice], data: ChatRequest, model: str, ignored: list[str]
) -> dict[str, Any]:
    tokenizer, shown = job.llm.tokenizer, []
    for choice in choices:
        scored = (
            {"content": logprobs.chat(tokenizer, choice.logprobs), "refusal": None}
            if data.logprobs
            else None
        )
        entry: dict[str, Any] = {
            "index": choice.index,
            "message": choice.message(),
            "logprobs": scored,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
        }
        if data.return_token_ids:
            entry["token_ids"] = choice.token_ids
        shown.append(entry)
    body: dict[str, Any] = {
        "id": f"chatcmpl-{job.id}",
        "object": "chat.completion",
        "created": job.created,
        "model": model,
        "choices": shown,
        "usage": job.usage(reasoning_tokens=_reasoning(choices)),
    }
    if data.return_token_ids:
        body["prompt_token_ids"] = job.prompts[0]
    if choices[0].prompt_logprobs is not None:
        body["prompt_logprobs"] = logprobs.prompt(tokenizer, choices[0].prompt_logprobs)
    return body | ({"x_inferno": {"ignored": ignored}} if ignored else {})


def _reasoning(choices: list[_Choice]) -> int | None:
    counts = [c.reasoning_tokens() for c in choices]
    return None if None in counts else sum(c for c in counts if c is not None)


async def _frames(
    job: Job, choices: list[_Choice], chunks: Chunks, data: ChatRequest
) -> AsyncGenerator[bytes, None]:
    try:
        start = members(prompt_token_ids=job.prompts[0]) if data.return_token_ids else b""
        for choice in choices:
            yield chunks.event(
                choice.index,
                b'"delta":{"role":"assistant","content":""},"logprobs":null',
                rest=start,
            )
        async for deltas in job.deltas():
            for delta in deltas:
                choice = choices[delta.index]
                for event in _events(choice, choice.take(delta), chunks, data):
                    yield event
        if all(c.finish for c in choices):
            yield chunks.end(reasoning_tokens=_reasoning(choices))
    except Exception as error:
        yield frame(error)


def _events(choice: _Choice, pieces: list[Piece], chunks: Chunks, data: ChatRequest) -> list[bytes]:
    """The delta's events. Logprobs and token ids go with the first; they wait where there is none
    yet."""
    payloads = [p for piece in pieces for p in _payloads(choice, piece)]
    if choice.finish is not None:
        payloads.append(b"{}")
    events = []
    for i, payload in enumerate(payloads):
        finish = choice.finish if i == len(payloads) - 1 else None
        rest = members(stop_reason=choice.stop_reason) if finish else b""
        scored = b"null"
        if data.logprobs and choice.logprobs:
            found = logprobs.chat(choice.service.llm.tokenizer, choice.logprobs)
            scored = encode({"content": found, "refusal": None})
        if data.return_token_ids and choice.token_ids:
            rest += members(token_ids=choice.token_ids)
        # What has been sent need not be kept: a stream's memory is its text.
        choice.logprobs, choice.token_ids = [], []
        payload = b'"delta":%b,"logprobs":%b' % (payload, scored)
        events.append(chunks.event(choice.index, payload, finish=finish, rest=rest))
    return events


def _payloads(choice: _Choice, piece: Piece) -> list[bytes]:
    if piece.kind == "content":
        return [b'{"content":%b}' % encode(piece.text)]
    if piece.kind == "reasoning":
        return [encode(dict.fromkeys(choice.service.reasoning_fields, piece.text))]
    index = choice.calls.index(piece)
    head = {
        "index": index,
        "id": piece.id,
        "type": "function",
        "function": {"name": piece.name, "arguments": ""},
    }
    arguments = {"index": index, "function": {"arguments": piece.text}}
    return [encode({"tool_calls": [head]}), encode({"tool_calls": [arguments]})]
