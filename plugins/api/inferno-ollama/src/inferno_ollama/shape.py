"""Ollama's answers: JSON lines, or one object. Durations are in nanoseconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define, field

from inferno.errors import InfernoError
from inferno.server.api import (
    ParsedChoice,
    ServedModel,
    Shape,
    arguments_object,
    encode,
    log,
    logprobs,
)
from inferno_ollama.errors import message

if TYPE_CHECKING:
    from inferno.contracts import OutputParser
    from inferno.llm import TextDelta


def timestamp(seconds: float) -> str:
    """Return a time as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


@define
class _Choice(ParsedChoice):
    first_at: float | None = None
    """When its first token came."""
    num_tokens: int = 0
    calls: list[dict[str, Any]] = field(factory=list)
    """Tool calls that were sent already."""

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        self.first_at = self.first_at or time.monotonic()
        self.num_tokens += len(delta.token_ids)
        self.token_ids = []


class OllamaShape(Shape[_Choice]):
    """One answer of /api/chat or /api/generate."""

    media_type: ClassVar[str] = "application/x-ndjson"
    ping: ClassVar[bytes] = b""

    def __init__(
        self, model: ServedModel, name: str, parser: OutputParser | None, *, logprobs: bool
    ) -> None:
        self._model, self._name, self._logprobs = model, name, logprobs
        self._started = time.monotonic()
        self.choices = [_Choice(0, parser=parser)]

    def update(self, choice: _Choice) -> Iterable[bytes]:
        for delta in choice.drain():
            if delta.kind == "tool":
                choice.calls.append(_call(delta.name, delta.text, delta.id, len(choice.calls)))
                part = self.part("", "", choice.calls[-1:])
            elif delta.kind == "reasoning":
                part = self.part("", delta.text, ())
            else:
                part = self.part(delta.text, "", ())
            yield self._line({**part, "done": False, **self._scores(choice)})

    def end(self) -> Iterable[bytes]:
        [choice] = self.choices
        yield self._line({**self.part("", "", ()), **self._scores(choice), **self._final(choice)})

    def whole(self) -> dict[str, Any]:
        [choice] = self.choices
        content: list[str] = []
        calls: list[dict[str, Any]] = []
        for delta in choice.drain():
            if delta.kind == "tool":
                calls.append(_call(delta.name, delta.text, delta.id, len(calls)))
            elif delta.kind == "content":
                content.append(delta.text)
        part = self.part("".join(content), "".join(choice.reasoning), calls)
        return {**self._head(), **part, **self._scores(choice), **self._final(choice)}

    def error(self, error: BaseException) -> bytes:
        if not isinstance(error, InfernoError):
            log.error("stream failed", exc_info=error)
        return encode({"error": message(error)}) + b"\n"

    def part(self, content: str, thinking: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the members that hold what the model wrote."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = list(calls)
        return {"message": message}

    def _head(self) -> dict[str, Any]:
        return {"model": self._name, "created_at": timestamp(time.time())}

    def _line(self, members: dict[str, Any]) -> bytes:
        return encode({**self._head(), **members}) + b"\n"

    def _scores(self, choice: _Choice) -> dict[str, Any]:
        scored, choice.logprobs = choice.logprobs, []
        if not self._logprobs or not scored:
            return {}
        entries = logprobs.chat(self._model.tokenizer, scored)
        return {"logprobs": entries}

    def _final(self, choice: _Choice) -> dict[str, Any]:
        now = time.monotonic()
        first = choice.first_at or now
        prepared = self.generation.prepared
        final: dict[str, Any] = {
            "done": True,
            "done_reason": "stop" if choice.finish == "tool_calls" else choice.finish,
            "total_duration": _nanoseconds(now - self._started),
            "load_duration": 0,
            "prompt_eval_count": sum(map(len, prepared.prompts)),
            "prompt_eval_duration": _nanoseconds(first - self._started),
            "eval_count": choice.num_tokens,
            "eval_duration": _nanoseconds(now - first),
        }
        if choice.weight_version:
            final["weight_version"] = choice.weight_version
        if prepared.ignored:
            final["x_inferno"] = {"ignored": prepared.ignored}
        return final


class GenerateShape(OllamaShape):
    def part(self, content: str, thinking: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"response": content, **({"thinking": thinking} if thinking else {})}


def _call(name: str, arguments: str, id: str, index: int) -> dict[str, Any]:
    function = {"index": index, "name": name, "arguments": arguments_object(arguments)}
    return {"id": id, "function": function}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
