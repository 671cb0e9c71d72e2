"""The answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from inferno.llm import TextDelta
from inferno.request.requests import Logprobs
from inferno.server.fields.schema import CompletionRequest
from inferno.server.generate.chunks import Chunked, Chunks, OpenAIShape, encode_event
from inferno.server.generate.shape import Choice, encode
from inferno.server.hosting.served_model import ServedModel
from inferno.server.openai import logprobs


@define
class _Choice(Choice, Chunked):
    shape: TextShape = field(kw_only=True)
    text: list[str] = field(factory=list)
    _offset: int = 0
    """Text offset of the next token."""

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        self.text.append(delta.text)

    def opening(self, chunks: Chunks) -> bytes | None:
        if not self.shape.data.echo:
            return None
        payload = b'"text":%b,"logprobs":null' % encode(self.shape.prompt_text(self.index))
        return chunks.event(self.index, payload)

    def events(self, chunks: Chunks) -> Sequence[bytes]:
        """Empty while a character is incomplete or a stop string may have begun."""
        text, ids = "".join(self.text), self.shape.data.return_token_ids
        if not (text or self.finish or self.logprobs or ids):
            return ()
        payload = b'"text":%b,"logprobs":%b' % (encode(text), encode(self._scored()))
        self.text = []
        return (encode_event(chunks, self, payload, finish=self.finish, with_ids=ids),)

    def entry(self) -> dict[str, Any]:
        data, shape = self.shape.data, self.shape
        scored = shape.prompt_logprobs(self.index)
        entry: dict[str, Any] = {
            "index": self.index,
            "text": (shape.prompt_text(self.index) if data.echo else "") + "".join(self.text),
            "logprobs": self._scored(scored if data.echo else None),
            "finish_reason": self.finish,
            "stop_reason": self.stop_reason,
        }
        if shape.reports_prompt and scored is not None:
            entry["prompt_logprobs"] = logprobs.prompt(shape.model.tokenizer, scored)
        if data.return_token_ids:
            prompt_token_ids = shape.prompt_token_ids(self.index)
            entry |= {"prompt_token_ids": prompt_token_ids, "token_ids": self.token_ids}
        return entry

    def _scored(self, echo: tuple[Logprobs | None, ...] | None = None) -> dict[str, Any] | None:
        shape, top = self.shape, self.shape.data.logprobs
        if top is None:
            return None
        positions: list[Logprobs | None] = [*(echo or ()), *self.logprobs]
        ids = [*(shape.prompt_token_ids(self.index) if echo is not None else ()), *self.token_ids]
        as_ids = bool(shape.data.return_tokens_as_token_ids)
        tokenizer = None if as_ids else shape.model.tokenizer
        scored, self._offset = logprobs.completion(
            tokenizer, positions, ids, self._offset, listed=bool(top) or as_ids
        )
        return scored


class TextShape(OpenAIShape[_Choice]):
    id_prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        model: ServedModel,
        data: CompletionRequest,
        texts: list[str],
        prompts: list[tuple[int, ...]],
        n: int,
        *,
        reports_prompt: bool,
    ) -> None:
        self.model, self.data = model, data
        self._texts, self._prompts, self._n = texts, prompts, n
        self.reports_prompt = reports_prompt
        """Whether the request asks for `prompt_logprobs`: an echo scores the prompt too."""
        self.choices = [_Choice(i, shape=self) for i in range(len(prompts) * n)]

    def prompt_text(self, index: int) -> str:
        return self._texts[index // self._n]

    def prompt_token_ids(self, index: int) -> tuple[int, ...]:
        return self._prompts[index // self._n]

    def prompt_logprobs(self, index: int) -> tuple[Logprobs | None, ...] | None:
        """Logprobs of an output's prompt, scored once for the first of its n outputs."""
        return self.choices[index // self._n * self._n].prompt_logprobs
