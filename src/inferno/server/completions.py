"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, field
from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.core.sampling_params import SamplingParams
from inferno.core.types import Logprobs
from inferno.errors import RequestError
from inferno.llm import TextDelta
from inferno.server import logprobs
from inferno.server.chunks import Chunks, encode, members
from inferno.server.errors import unsupported
from inferno.server.generation import Pipeline, Prepared
from inferno.server.model import ServedModel, in_time
from inferno.server.parsing import CattrsDTO, Parsed
from inferno.server.sampling import given
from inferno.server.schema import ERROR_RESPONSES, CompletionRequest
from inferno.server.shape import Choice, Shape

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""
_MAX_OUTPUTS = 1024
"""Maximum of prompts times n in one request."""


@post(
    "/v1/completions",
    status_code=200,
    dto=CattrsDTO[CompletionRequest],
    return_dto=None,
    responses=ERROR_RESPONSES,
)
async def completions(
    data: JSONBody[Parsed[CompletionRequest]],
    request: Request[Any, Any, Any],
    model: NamedDependency[ServedModel],
    pipeline: NamedDependency[Pipeline],
) -> Response[Any]:
    """Continue a string, or token ids."""
    body = data.body
    name = model.name(body.model)
    sent = given(body)
    params = _params(body, sent, model)
    texts, prompts = await _prompts(body, model)
    if len(prompts) * params.n > _MAX_OUTPUTS:
        raise RequestError(
            "too many prompts", f"Prompts times n must be at most {_MAX_OUTPUTS}.", param="prompt"
        )
    prepared = Prepared.of(
        data,
        model=name,
        prompts=prompts,
        params=params,
        prompt_only=sent.get("max_tokens") == 0,
    )
    shape = TextShape(
        model, body, texts, prompts, params.n, reports_prompt="prompt_logprobs" in sent
    )
    return await pipeline.respond(prepared, shape, request.receive)


def _params(data: CompletionRequest, sent: Mapping[str, Any], model: ServedModel) -> SamplingParams:
    if data.best_of is not None and data.best_of != sent.get("n", 1):
        raise unsupported("best_of", "Use n and choose among the outputs.")
    if data.stream and data.echo and data.logprobs is not None:
        raise unsupported(
            "echo", "Prompt logprobs are not streamed: leave stream out, or logprobs."
        )
    values = {"max_tokens": _DEFAULT_MAX_TOKENS, **sent, "logprobs": data.logprobs}
    if values["max_tokens"] == 0 and data.echo:
        values["max_tokens"] = 1  # the engine always samples one; `Generation` drops it
    if data.echo and data.logprobs is not None:
        values["prompt_logprobs"] = max(data.logprobs, sent.get("prompt_logprobs", 0))
    return evolve(model.preprocessor.default_params, **values)


async def _prompts(
    data: CompletionRequest, model: ServedModel
) -> tuple[list[str], list[tuple[int, ...]]]:
    """Return each prompt as a string (empty unless echoed) and as unchecked token ids. Raises
    RequestError."""
    raw: Any = data.prompt
    prompts = [raw] if isinstance(raw, str) or isinstance(raw[0], int) else raw
    special = data.add_special_tokens is not False

    def encode_one(prompt: str | list[int]) -> tuple[str, tuple[int, ...]]:
        if isinstance(prompt, str):
            ids = model.needed_tokenizer("prompt").encode(prompt, add_special_tokens=special)
            return prompt, tuple(ids)
        if not data.echo or model.tokenizer is None:
            return "", tuple(prompt)
        return model.tokenizer.decode(prompt, skip_special_tokens=False), tuple(prompt)

    pairs = await in_time(lambda: [encode_one(p) for p in prompts], sum(map(len, prompts)))
    return [text for text, _ in pairs], [ids for _, ids in pairs]


@define
class _Choice(Choice):
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
        rest = members(stop_reason=self.stop_reason) if self.finish else b""
        if ids:
            rest += members(token_ids=self.token_ids)
        self.text, self.token_ids, self.logprobs = [], [], []
        return (chunks.event(self.index, payload, finish=self.finish, rest=rest),)

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
        scored, self._offset = logprobs.completion(
            shape.model.tokenizer, positions, ids, self._offset, top
        )
        return scored


class TextShape(Shape[_Choice]):
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
