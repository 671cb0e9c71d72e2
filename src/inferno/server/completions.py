"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from attrs import define, field
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
from inferno.server.parsing import CattrsDTO
from inferno.server.schema import ERROR_RESPONSES, CompletionRequest
from inferno.server.service import Service, check_salt, sampling

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this endpoint only."""
_LONG = 20_000
"""Characters of prompt that are worth a thread: tokenizing them would hold up every stream."""
_MAX_OUTPUTS = 1024
"""Prompts times n that one request may ask for."""


@post(
    "/v1/completions",
    status_code=200,
    dto=CattrsDTO[CompletionRequest],
    return_dto=None,
    responses=ERROR_RESPONSES,
)
async def completions(
    data: JSONBody[CompletionRequest],
    request: Request[Any, Any, Any],
    service: NamedDependency[Service],
) -> Response[Any]:
    """Text, or token ids, that go on."""
    model = service.model(data.model)
    _check(data)
    params = _params(data, service)
    texts, prompts = await _prompts(data, service)
    if len(prompts) * params.n > _MAX_OUTPUTS:
        raise RequestError(
            "too many prompts", f"Prompts times n may be {_MAX_OUTPUTS}.", param="prompt"
        )
    job = Job(
        service.llm,
        service.gate,
        service.metrics,
        prompts,
        params,
        data.priority or 0,
        check_salt(data.cache_salt),
    )
    choices = [_Choice(service, data, i, prompts[i // params.n]) for i in range(job.num_outputs)]
    ignored = request.state.ignored
    job.open()
    if data.stream:
        chunks = Chunks("text_completion", f"cmpl-{job.id}", model, job, data, ignored)
        return Events(
            _frames(job, choices, texts, chunks),
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
    return Response(_whole(job, choices, texts, model, ignored), media_type="application/json")


def _check(data: CompletionRequest) -> None:
    if data.best_of is not None and data.best_of != (data.n or 1):
        raise unsupported("best_of", "Use n and choose among the outputs.")
    if data.stream and data.prompt_logprobs is not None:
        raise unsupported("prompt_logprobs", "They come in one piece: leave stream out.")
    if data.stream and data.echo and data.logprobs is not None:
        raise unsupported(
            "echo", "The prompt's logprobs come in one piece: leave stream out, or logprobs."
        )


def _params(data: CompletionRequest, service: Service) -> SamplingParams:
    limit = _DEFAULT_MAX_TOKENS if data.max_tokens is None else data.max_tokens
    if data.echo and limit == 0:
        limit = 1  # the engine always draws one; `_Choice` leaves it out
    prompt_logprobs = data.prompt_logprobs
    if data.echo and data.logprobs is not None:
        prompt_logprobs = max(data.logprobs, prompt_logprobs or 0)
    return sampling(
        data,
        service.llm.default_params,
        max_tokens=limit,
        logprobs=data.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


async def _prompts(
    data: CompletionRequest, service: Service
) -> tuple[list[str], list[tuple[int, ...]]]:
    """Each prompt as text (empty unless echoed) and as token ids. Raises RequestError."""
    raw: Any = data.prompt
    given = [raw] if isinstance(raw, str) or isinstance(raw[0], int) else raw
    tokenizer, special = service.llm.tokenizer, data.add_special_tokens is not False

    def encode_one(prompt: str | list[int]) -> tuple[int, ...]:
        if isinstance(prompt, str) and tokenizer is not None:
            return tuple(tokenizer.encode(prompt, add_special_tokens=special))
        return service.llm.encode_prompt(prompt)

    def text(prompt: str | list[int]) -> str:
        if isinstance(prompt, str) or not data.echo:
            return prompt if isinstance(prompt, str) else ""
        return tokenizer.decode(prompt, skip_special_tokens=False) if tokenizer else ""

    def work() -> tuple[list[str], list[tuple[int, ...]]]:
        return [text(p) for p in given], [encode_one(p) for p in given]

    return await asyncio.to_thread(work) if sum(map(len, given)) > _LONG else work()


@define
class _Choice:
    """One output so far."""

    service: Service
    data: CompletionRequest
    index: int
    prompt: tuple[int, ...]
    text: list[str] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    logprobs: list[Logprobs] = field(factory=list)
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    offset: int = 0
    """Where in the text the next token's logprobs begin."""
    finish: str | None = None
    stop_reason: str | int | None = None

    @property
    def news(self) -> bool:
        """Whether there is anything to tell: a token may be half a character, or the beginning of a
        stop text."""
        return bool(self.finish or self.logprobs or any(self.text) or self.data.return_token_ids)

    def take(self, delta: Any) -> None:
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish, self.stop_reason = delta.finish_reason, delta.stop_reason
        if self.data.max_tokens == 0:
            self.finish = self.finish and "length"
            return
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()

    def scored(self, echo: tuple[Logprobs | None, ...] | None = None) -> dict[str, Any] | None:
        if self.data.logprobs is None:
            return None
        positions: list[Logprobs | None] = [*(echo or ()), *self.logprobs]
        ids = [*(self.prompt if echo is not None else ()), *self.token_ids]
        tokenizer, top = self.service.llm.tokenizer, self.data.logprobs
        shape, self.offset = logprobs.completion(tokenizer, positions, ids, self.offset, top)
        return shape


def _whole(
    job: Job, choices: list[_Choice], texts: list[str], model: str, ignored: list[str]
) -> dict[str, Any]:
    data, n, shown = choices[0].data, job.params.n, []
    if data.max_tokens == 0:
        job.completion_tokens = 0
    for choice in choices:
        first = choices[
            choice.index // n * n
        ]  # the prompt was scored once, for the first of its n outputs
        prompt_logprobs = first.prompt_logprobs
        entry: dict[str, Any] = {
            "index": choice.index,
            "text": (texts[choice.index // n] if data.echo else "") + "".join(choice.text),
            "logprobs": choice.scored(prompt_logprobs if data.echo else None),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
        }
        if data.prompt_logprobs is not None and prompt_logprobs is not None:
            entry["prompt_logprobs"] = logprobs.prompt(job.llm.tokenizer, prompt_logprobs)
        if data.return_token_ids:
            entry |= {"prompt_token_ids": choice.prompt, "token_ids": choice.token_ids}
        shown.append(entry)
    body = {
        "id": f"cmpl-{job.id}",
        "object": "text_completion",
        "created": job.created,
        "model": model,
        "choices": shown,
        "usage": job.usage(),
    }
    return body | ({"x_inferno": {"ignored": ignored}} if ignored else {})


async def _frames(
    job: Job, choices: list[_Choice], texts: list[str], chunks: Chunks
) -> AsyncGenerator[bytes, None]:
    try:
        data = choices[0].data
        if data.echo:
            for choice in choices:
                text = texts[choice.index // job.params.n]
                yield chunks.event(choice.index, b'"text":%b,"logprobs":null' % encode(text))
        async for deltas in job.deltas():
            for delta in deltas:
                choice = choices[delta.index]
                choice.take(delta)
                if data.max_tokens == 0:
                    job.completion_tokens = 0
                if choice.news:
                    yield _event(choice, chunks)
        if all(c.finish for c in choices):
            yield chunks.end()
    except Exception as error:
        yield frame(error)


def _event(choice: _Choice, chunks: Chunks) -> bytes:
    payload = b'"text":%b,"logprobs":%b' % (encode("".join(choice.text)), encode(choice.scored()))
    rest = members(stop_reason=choice.stop_reason) if choice.finish else b""
    if choice.data.return_token_ids:
        rest += members(token_ids=choice.token_ids)
    choice.text, choice.token_ids, choice.logprobs = [], [], []
    return chunks.event(choice.index, payload, finish=choice.finish, rest=rest)
