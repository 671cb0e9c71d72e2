"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, evolve, field
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.core.sampling_params import SamplingParams
from inferno.errors import RequestError
from inferno.llm import TextDelta
from inferno.server import logprobs
from inferno.server.chunks import Chunks, encode, members
from inferno.server.conversation import encode_chat, tools_to_offer
from inferno.server.generation import Pipeline, Prepared
from inferno.server.model import ServedModel
from inferno.server.output_parser import Delta, OutputParser
from inferno.server.parsing import CattrsDTO, Parsed
from inferno.server.sampling import given
from inferno.server.schema import ERROR_RESPONSES, ChatRequest
from inferno.server.shape import Choice, Shape


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
    values |= given(data)
    if data.max_completion_tokens is not None:
        values["max_tokens"] = data.max_completion_tokens
    if data.logprobs:
        values["logprobs"] = data.top_logprobs or 0
    return evolve(model.preprocessor.default_params, **values)


@define
class _Choice(Choice):
    shape: ChatShape = field(kw_only=True)
    parser: OutputParser | None = field(kw_only=True)
    deltas: list[Delta] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    """All reasoning, counted at the end."""
    num_calls: int = 0
    """Number of tool calls written as events."""
    _has_calls: bool = False

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        for new in self._parsed(delta):
            self.deltas.append(new)
            if new.kind == "reasoning":
                self.reasoning.append(new.text)
            elif new.kind == "tool":
                self._has_calls = True
        if self.finish == "stop" and self._has_calls:
            self.finish = "tool_calls"

    def reasoning_tokens(self) -> int | None:
        """Count by encoding the reasoning again; None if it cannot be separated from the output."""
        tokenizer = self.shape.model.tokenizer
        if self.parser is None or tokenizer is None:
            return None
        text = "".join(self.reasoning)
        return len(tokenizer.encode(text, add_special_tokens=False)) if text else 0

    def opening(self, chunks: Chunks) -> bytes:
        payload = b'"delta":{"role":"assistant","content":""},"logprobs":null'
        ids = self.shape.data.return_token_ids
        rest = members(prompt_token_ids=self.shape.prompt_token_ids) if ids else b""
        return chunks.event(self.index, payload, rest=rest)

    def events(self, chunks: Chunks) -> Sequence[bytes]:
        """Logprobs and token ids go with the first event, and wait until there is one."""
        payloads = [payload for delta in self.deltas for payload in self._payloads(delta)]
        self.deltas = []
        if self.finish is not None:
            payloads.append(b"{}")
        events = []
        for i, payload in enumerate(payloads):
            finish = self.finish if i == len(payloads) - 1 else None
            rest = members(stop_reason=self.stop_reason) if finish else b""
            if self.shape.data.return_token_ids and self.token_ids:
                rest += members(token_ids=self.token_ids)
            scored = encode(self._scored()) if self.logprobs else b"null"
            self.logprobs, self.token_ids = [], []
            payload = b'"delta":%b,"logprobs":%b' % (payload, scored)
            events.append(chunks.event(self.index, payload, finish=finish, rest=rest))
        return events

    def entry(self) -> dict[str, Any]:
        shown = {
            "index": self.index,
            "message": self._message(),
            "logprobs": self._scored(),
            "finish_reason": self.finish,
            "stop_reason": self.stop_reason,
        }
        return shown | ({"token_ids": self.token_ids} if self.shape.data.return_token_ids else {})

    def _parsed(self, delta: TextDelta) -> list[Delta]:
        if self.parser is None:
            return [Delta("content", delta.text)] if delta.text else []
        deltas = self.parser.feed(delta.text) if delta.text else []
        return deltas + self.parser.finish() if delta.finish_reason is not None else deltas

    def _payloads(self, delta: Delta) -> list[bytes]:
        if delta.kind == "content":
            return [b'{"content":%b}' % encode(delta.text)]
        if delta.kind == "reasoning":
            return [encode(dict.fromkeys(self.shape.model.reasoning_fields, delta.text))]
        index, self.num_calls = self.num_calls, self.num_calls + 1
        head = {"index": index, **_call(delta, "")}
        arguments = {"index": index, "function": {"arguments": delta.text}}
        return [encode({"tool_calls": [head]}), encode({"tool_calls": [arguments]})]

    def _scored(self) -> dict[str, Any] | None:
        if not self.shape.data.logprobs:
            return None
        return {
            "content": logprobs.chat(self.shape.model.tokenizer, self.logprobs),
            "refusal": None,
        }

    def _message(self) -> dict[str, Any]:
        content = "".join(d.text for d in self.deltas if d.kind == "content")
        calls = [_call(d, d.text) for d in self.deltas if d.kind == "tool"]
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            message |= dict.fromkeys(self.shape.model.reasoning_fields, "".join(self.reasoning))
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
        return message


class ChatShape(Shape[_Choice]):
    id_prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        model: ServedModel,
        data: ChatRequest,
        prompt_token_ids: tuple[int, ...],
        parsers: Sequence[OutputParser | None],
    ) -> None:
        self.model, self.data, self.prompt_token_ids = model, data, prompt_token_ids
        self.choices = [_Choice(i, shape=self, parser=p) for i, p in enumerate(parsers)]

    def extras(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.data.return_token_ids:
            found["prompt_token_ids"] = self.prompt_token_ids
        if (scored := self.choices[0].prompt_logprobs) is not None:
            found["prompt_logprobs"] = logprobs.prompt(self.model.tokenizer, scored)
        return found

    def reasoning_tokens(self) -> int | None:
        counts = [choice.reasoning_tokens() for choice in self.choices]
        return None if None in counts else sum(filter(None, counts))


def _call(delta: Delta, arguments: str) -> dict[str, Any]:
    function = {"name": delta.name, "arguments": arguments}
    return {"id": delta.id, "type": "function", "function": function}
