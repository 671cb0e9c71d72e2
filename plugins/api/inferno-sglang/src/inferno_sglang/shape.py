"""SGLang's answers: an object for each output, in a stream with all of the text so far."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from inferno.server.api import Choice, Prepared, ServedModel, Shape, encode
from inferno_sglang.running import Running

if TYPE_CHECKING:
    from inferno.llm import TextDelta


@frozen(kw_only=True)
class Wanted:
    """What a request wants to be told."""

    listed: bool
    """Whether it has a list of prompts."""
    scores: bool
    top: int
    """Alternatives of each token."""
    start: int
    """The first token of the prompt that is scored; -1: none."""


@define
class _Choice(Choice):
    text: str = ""
    num_cached: int = 0

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        self.text += delta.text
        self.num_cached = max(self.num_cached, delta.num_cached)


class GenerateShape(Shape[_Choice]):
    def __init__(
        self, model: ServedModel, wanted: Wanted, running: Running, rid: str | None
    ) -> None:
        self._model, self._wanted, self._running, self._rid = model, wanted, running, rid
        self._started = time.monotonic()
        self.choices: list[_Choice] = []

    def begin_with(self, prepared: Prepared) -> None:
        """Have a choice for each output."""
        self.choices = [_Choice(i) for i in range(prepared.num_outputs)]

    def open(self, generation: Any) -> None:
        super().open(generation)
        generation.partial = True  # trainers go on with what a pause has cut off
        if self._rid is not None:
            self._running[self._rid] = partial(generation.llm.abort, generation.id)

    def close(self) -> None:
        if self._rid is not None:
            self._running.pop(self._rid, None)

    def update(self, choice: _Choice) -> Iterable[bytes]:
        entry = self._entry(choice)
        if len(self.choices) > 1:
            entry["index"] = choice.index
        yield b"data: " + encode(entry) + b"\n\n"

    def end(self) -> Iterable[bytes]:
        yield b"data: [DONE]\n\n"

    def whole(self) -> Any:
        entries = [self._entry(choice) for choice in self.choices]
        return entries if self._wanted.listed or len(entries) > 1 else entries[0]

    def _entry(self, choice: _Choice) -> dict[str, Any]:
        return {
            "text": choice.text,
            "output_ids": choice.token_ids,
            "meta_info": {**self._about(choice), **self._scores(choice)},
        }

    def _about(self, choice: _Choice) -> dict[str, Any]:
        prepared, id = self.generation.prepared, self._rid or self.generation.id
        many = len(self.choices) > 1
        return {
            "id": f"{id}_{choice.index}" if many else id,
            "finish_reason": _finish(choice),
            "prompt_tokens": len(self._prompt(choice)),
            "completion_tokens": len(choice.token_ids),
            "cached_tokens": choice.num_cached,
            "weight_version": choice.weight_version,
            "e2e_latency": time.monotonic() - self._started,
            **({"ignored": prepared.ignored} if prepared.ignored else {}),
        }

    def _prompt(self, choice: _Choice) -> tuple[int, ...]:
        prepared = self.generation.prepared
        return prepared.prompts[choice.index // prepared.params.n]

    def _scores(self, choice: _Choice) -> dict[str, Any]:
        if not self._wanted.scores:
            return {}
        outputs = choice.logprobs
        fields: dict[str, Any] = {
            "output_token_logprobs": [[each.logprob, each.token_id, None] for each in outputs]
        }
        if self._wanted.top:
            fields["output_top_logprobs"] = [_top(each) for each in outputs]
        if (start := self._wanted.start) >= 0:
            n = self.generation.prepared.params.n
            scored = self.choices[choice.index // n * n].prompt_logprobs or ()
            prompt = self._prompt(choice)
            fields["input_token_logprobs"] = [
                [each.logprob if each else None, id, None]
                for each, id in zip(scored[start:], prompt[start:], strict=False)
            ]
            if self._wanted.top:
                fields["input_top_logprobs"] = [each and _top(each) for each in scored[start:]]
        return fields


def _top(scored: Any) -> list[list[Any]]:
    return [[logprob, token_id, None] for token_id, logprob in scored.top]


def _finish(choice: _Choice) -> dict[str, Any] | None:
    match choice.finish:
        case None:
            return None
        case "stop":
            end = choice.token_ids[-1] if choice.token_ids else None
            return {
                "type": "stop",
                "matched": end if choice.stop_reason is None else choice.stop_reason,
            }
        case "length":
            return {"type": "length", "length": len(choice.token_ids)}
        case other:
            return {"type": other, "message": "The request was aborted."}
