"""The answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from inferno.contracts import Delta
from inferno.server.chat.conversation import Conversation, ParsedChoice
from inferno.server.fields.schema import ChatRequest
from inferno.server.generate.chunks import Chunked, Chunks, OpenAIShape, encode_event, members
from inferno.server.generate.shape import encode
from inferno.server.hosting.served_model import ServedModel
from inferno.server.openai import logprobs


@define
class _Choice(ParsedChoice, Chunked):
    shape: ChatShape = field(kw_only=True)
    num_calls: int = 0
    """Number of tool calls written as events."""

    def opening(self, chunks: Chunks) -> bytes:
        payload = b'"delta":{"role":"assistant","content":""},"logprobs":null'
        ids = self.shape.data.return_token_ids
        rest = members(prompt_token_ids=self.shape.prompt_token_ids) if ids else b""
        return chunks.event(self.index, payload, rest=rest)

    def events(self, chunks: Chunks) -> Sequence[bytes]:
        """Logprobs and token ids go with the first event, and wait until there is one."""
        payloads = [payload for delta in self.drain() for payload in self._payloads(delta)]
        if self.finish is not None:
            payloads.append(b"{}")
        events = []
        for i, payload in enumerate(payloads):
            finish = self.finish if i == len(payloads) - 1 else None
            with_ids = self.shape.data.return_token_ids and bool(self.token_ids)
            scored = encode(self._scored()) if self.logprobs else b"null"
            payload = b'"delta":%b,"logprobs":%b' % (payload, scored)
            events.append(encode_event(chunks, self, payload, finish=finish, with_ids=with_ids))
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
        as_ids = self.shape.data.return_tokens_as_token_ids
        tokenizer = None if as_ids else self.shape.model.tokenizer
        return {
            "content": logprobs.chat(tokenizer, self.logprobs),
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


class ChatShape(OpenAIShape[_Choice]):
    id_prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: ServedModel, data: ChatRequest, conversation: Conversation) -> None:
        self.model, self.data = model, data
        self.prompt_token_ids = conversation.prompt.token_ids
        self.choices = [
            _Choice(i, shape=self, parser=parser) for i, parser in enumerate(conversation.parsers)
        ]

    def whole(self) -> dict[str, Any]:
        body = super().whole()
        if self.data.return_token_ids:
            body["prompt_token_ids"] = self.prompt_token_ids
        if (scored := self.choices[0].prompt_logprobs) is not None:
            body["prompt_logprobs"] = logprobs.prompt(self.model.tokenizer, scored)
        return body

    def reasoning_tokens(self) -> int | None:
        counts = [choice.reasoning_tokens(self.model.tokenizer) for choice in self.choices]
        return None if None in counts else sum(filter(None, counts))


def _call(delta: Delta, arguments: str) -> dict[str, Any]:
    function = {"name": delta.name, "arguments": arguments}
    return {"id": delta.id, "type": "function", "function": function}
