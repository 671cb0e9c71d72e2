"""llama.cpp's answers: one object, or a stream of events that ends with it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import define, field

from inferno.server.api import Choice, ServedModel, Shape, encode, logprobs
from inferno_llamacpp.schema import Generating

if TYPE_CHECKING:
    from inferno.llm import TextDelta

_STOPS = {"length": "limit", "stop": "eos"}


@define
class _Choice(Choice):
    text: list[str] = field(factory=list)
    """Buffered output."""
    has_break: bool = False
    """Whether a line break was written."""
    num_tokens: int = 0
    num_cached: int = 0
    first_at: float | None = None

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        self.first_at = self.first_at or time.monotonic()
        self.text.append(delta.text)
        self.has_break = self.has_break or "\n" in delta.text
        self.num_tokens += len(delta.token_ids)
        self.num_cached = max(self.num_cached, delta.num_cached)


class LlamaShape(Shape[_Choice]):
    def __init__(self, model: ServedModel, body: Generating) -> None:
        self._model, self._body = model, body
        self._started = time.monotonic()
        self.choices = [_Choice(0)]

    def update(self, choice: _Choice) -> Iterable[bytes]:
        part = self._part(choice)
        if part["content"] or part["tokens"] or "completion_probabilities" in part:
            yield self._event({**part, "stop": False})

    def end(self) -> Iterable[bytes]:
        [choice] = self.choices
        yield self._event({**self._part(choice), **self._final(choice)})

    def whole(self) -> dict[str, Any]:
        [choice] = self.choices
        return {**self._part(choice), **self._final(choice)}

    def _event(self, content: dict[str, Any]) -> bytes:
        return b"data: " + encode(content) + b"\n\n"

    def _part(self, choice: _Choice) -> dict[str, Any]:
        """Return what is new, and drop it."""
        text, choice.text = "".join(choice.text), []
        ids, choice.token_ids = choice.token_ids, []
        scored, choice.logprobs = choice.logprobs, []
        part: dict[str, Any] = {
            "index": 0,
            "content": text,
            "tokens": ids if self._body.return_tokens else [],
            "id_slot": 0,
            "tokens_predicted": choice.num_tokens,
            "tokens_evaluated": self._prompt_tokens,
        }
        if scored:
            entries = logprobs.chat(self._model.tokenizer, scored)
            part["completion_probabilities"] = [
                {"id": each.token_id, **entry} for each, entry in zip(scored, entries, strict=True)
            ]
        return part

    @property
    def _prompt_tokens(self) -> int:
        return sum(map(len, self.generation.prepared.prompts))

    def _final(self, choice: _Choice) -> dict[str, Any]:
        prepared, reason = self.generation.prepared, choice.stop_reason
        is_word = isinstance(reason, str)
        final: dict[str, Any] = {
            "stop": True,
            "model": prepared.model,
            "stop_type": "word" if is_word else _STOPS.get(choice.finish or "", "none"),
            "stopping_word": reason if is_word else "",
            "has_new_line": choice.has_break,
            "truncated": False,
            "tokens_cached": choice.num_cached,
            "generation_settings": settings(self._model, prepared.params),
            "timings": self._timings(choice),
        }
        if choice.weight_version:
            final["weight_version"] = choice.weight_version
        if prepared.ignored:
            final["x_inferno"] = {"ignored": prepared.ignored}
        return final

    def _timings(self, choice: _Choice) -> dict[str, Any]:
        now = time.monotonic()
        first = choice.first_at or now
        prompt_ms, predicted_ms = (first - self._started) * 1e3, (now - first) * 1e3
        prompt_n, predicted_n = self._prompt_tokens - choice.num_cached, choice.num_tokens
        return {
            "cache_n": choice.num_cached,
            "prompt_n": prompt_n,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / max(prompt_n, 1),
            "prompt_per_second": prompt_n / max(prompt_ms / 1e3, 1e-9),
            "predicted_n": predicted_n,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": predicted_ms / max(predicted_n, 1),
            "predicted_per_second": predicted_n / max(predicted_ms / 1e3, 1e-9),
        }


def settings(model: ServedModel, params: Any) -> dict[str, Any]:
    """Return sampling parameters under llama.cpp's names."""
    return {
        "n_ctx": model.preprocessor.max_model_len,
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "seed": -1 if params.seed is None else params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": params.repeat_last_n,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "ignore_eos": params.ignore_eos,
    }
