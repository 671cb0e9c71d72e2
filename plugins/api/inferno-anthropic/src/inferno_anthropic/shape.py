"""The answers of /v1/messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import define, field

from inferno.contracts import Delta
from inferno.errors import InfernoError
from inferno.server.api import (
    Conversation,
    ParsedChoice,
    ServedModel,
    Shape,
    arguments_object,
    encode,
    log,
)
from inferno_anthropic.errors import message_error

if TYPE_CHECKING:
    from inferno.llm import TextDelta

_KINDS = {"content": "text", "reasoning": "thinking"}


@define
class _Choice(ParsedChoice):
    """One message, as blocks. The last block may be open: its text is in `texts`."""

    streamed: bool = field(kw_only=True)
    blocks: list[dict[str, Any]] = field(factory=list)
    events: list[dict[str, Any]] = field(factory=list)
    """Buffered output."""
    texts: list[str] = field(factory=list)
    open: str = ""
    """The open block's type; empty for none."""

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        self.token_ids = []
        for new in self.drain():
            self._add(new)
        if self.finish is not None:
            self._close()

    def _add(self, delta: Delta) -> None:
        if delta.kind == "tool":
            self._close()
            self._call(delta)
            return
        kind = _KINDS[delta.kind]
        if self.open != kind:
            self._close()
            self.open = kind
            empty = {"thinking": "", "signature": ""} if kind == "thinking" else {"text": ""}
            self._begin({"type": kind, **empty})
        self.texts.append(delta.text)
        self._change({"type": f"{kind}_delta", kind: delta.text})

    def _call(self, delta: Delta) -> None:
        """A call is never split, so one delta has its whole input."""
        block = {"type": "tool_use", "id": delta.id, "name": delta.name}
        self._begin({**block, "input": {}})
        self._change({"type": "input_json_delta", "partial_json": delta.text})
        self.blocks[-1] = {**block, "input": arguments_object(delta.text)}
        self._stop()

    def _close(self) -> None:
        """Close the open block, if there is one."""
        kind, text = self.open, "".join(self.texts)
        if not kind:
            return
        block: dict[str, Any] = {"type": kind, kind: text}
        if kind == "thinking":
            # Clients send thoughts back only with a signature. It is not checked.
            block["signature"] = hashlib.sha256(text.encode()).hexdigest()
            self._change({"type": "signature_delta", "signature": block["signature"]})
        self.blocks[-1] = block
        self.open, self.texts = "", []
        self._stop()

    def _begin(self, block: dict[str, Any]) -> None:
        self.blocks.append(block)
        self._tell("start", content_block=block)

    def _change(self, delta: dict[str, Any]) -> None:
        self._tell("delta", delta=delta)

    def _stop(self) -> None:
        self._tell("stop")

    def _tell(self, kind: str, **values: Any) -> None:
        if self.streamed:
            index = len(self.blocks) - 1
            self.events.append({"type": f"content_block_{kind}", "index": index, **values})


class MessageShape(Shape[_Choice]):
    """One message, whole or as events."""

    ping = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(
        self, model: ServedModel, conversation: Conversation, streamed: bool, request_id: str
    ) -> None:
        self.model, self.request_id = model, request_id
        parser = conversation.parsers[0]
        self.choices = [_Choice(0, streamed=streamed, parser=parser)]

    def begin(self) -> Iterable[bytes]:
        message = self._message([], None, None, self._usage())
        return [_event({"type": "message_start", "message": message})]

    def update(self, choice: _Choice) -> Iterable[bytes]:
        events, choice.events = choice.events, []
        return [_event(event) for event in events]

    def end(self) -> Iterable[bytes]:
        reason, sequence = self._stop()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = self._usage()
        last = {"type": "message_delta", "delta": delta, "usage": usage, **self._version()}
        return [_event(last), _event({"type": "message_stop"})]

    def whole(self) -> dict[str, Any]:
        message = self._message(self.choices[0].blocks, *self._stop(), self._usage())
        return message | self._version()

    def error(self, error: BaseException) -> bytes:
        if not isinstance(error, InfernoError):
            log.error("stream failed", exc_info=error)
        return _event(message_error(error, self.request_id)[1])

    def reasoning_tokens(self) -> int | None:
        return self.choices[0].reasoning_tokens(self.model.tokenizer)

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: Any, usage: Any
    ) -> dict[str, Any]:
        prepared = self.generation.prepared
        message = {
            "id": f"msg_{self.generation.id}",
            "type": "message",
            "role": "assistant",
            "model": prepared.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }
        ignored = prepared.ignored
        return message | ({"x_inferno": {"ignored": ignored}} if ignored else {})

    def _version(self) -> dict[str, str]:
        version = self.choices[0].weight_version
        return {"weight_version": version} if version else {}

    def _stop(self) -> tuple[str, str | None]:
        choice = self.choices[0]
        if choice.finish == "length":
            return "max_tokens", None
        if choice.finish == "tool_calls":
            return "tool_use", None
        if isinstance(choice.stop_reason, str):
            return "stop_sequence", choice.stop_reason
        return "end_turn", None

    def _usage(self) -> dict[str, Any]:
        """Anthropic's usage object: `input_tokens` are those that were not in the cache."""
        usage: dict[str, Any] = self.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        thinking = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": thinking},
            "service_tier": "standard",
        }


def _event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))
