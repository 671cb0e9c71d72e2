"""Generates the answer to a prepared request, streamed or whole, for all endpoints."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, Self

from attrs import define, evolve, field, frozen
from litestar import Response
from litestar.types import Receive

from inferno.core.sampling_params import SamplingParams
from inferno.errors import EngineDeadError, InfernoError, RequestError, ShuttingDownError
from inferno.server.chunks import Chunks
from inferno.server.errors import frame
from inferno.server.events import PING_SECONDS, Events, on_disconnect
from inferno.server.limiter import Limiter
from inferno.server.parsing import Parsed
from inferno.server.schema import GenerationRequest, StreamOptions
from inferno.server.shape import Shape

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM, TextDelta
    from inferno.server.metrics import Metrics


@frozen(kw_only=True)
class Prepared:
    """What generation needs of a request to any endpoint."""

    model: str
    """Model name in the answer."""
    prompts: Sequence[tuple[int, ...]]
    params: SamplingParams
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = 0
    cache_salt: str = ""
    ignored: tuple[str, ...] = ()
    """Names of fields that have no effect."""
    prompt_only: bool = False
    """Score the prompt, and drop the one token that the engine always samples."""

    @classmethod
    def of(
        cls,
        parsed: Parsed[GenerationRequest],
        *,
        model: str,
        prompts: Sequence[tuple[int, ...]],
        params: SamplingParams,
        ignored: Sequence[str] = (),
        prompt_only: bool = False,
    ) -> Self:
        """Prepare a parsed body with the values its endpoint derived. `ignored` is added to the
        names from parsing. Raises RequestError."""
        data = parsed.body
        return cls(
            model=model,
            prompts=prompts,
            params=params,
            stream=bool(data.stream),
            stream_options=data.stream_options,
            priority=data.priority or 0,
            cache_salt=_checked(data.cache_salt),
            ignored=tuple(dict.fromkeys((*parsed.ignored, *ignored))),
            prompt_only=prompt_only,
        )

    @property
    def num_outputs(self) -> int:
        return len(self.prompts) * self.params.n


class Pipeline:
    """What all generations of one app share. (Not an attrs class: Litestar would inspect it.)"""

    def __init__(
        self,
        llm: AsyncLLM,
        limiter: Limiter,
        metrics: Metrics,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self.llm, self.limiter, self.metrics = llm, limiter, metrics
        self.ping_seconds = ping_seconds

    async def respond(
        self, prepared: Prepared, shape: Shape[Any], receive: Receive
    ) -> Response[Any]:
        """Generate, and answer in that shape: as events if the client asks for a stream, else
        whole. Raises errors that become a status code."""
        generation = Generation(self.llm, self.limiter, self.metrics, prepared)
        generation.open()
        head = {
            "id": f"{shape.id_prefix}-{generation.id}",
            "object": shape.chunk_kind if prepared.stream else shape.kind,
            "created": generation.created,
            "model": prepared.model,
        }
        if prepared.stream:
            chunks = Chunks(head, generation.usage, prepared.stream_options, prepared.ignored)
            return Events(
                _events(generation, shape, chunks),
                abort=generation.abort,
                close=generation.close,
                ping_seconds=self.ping_seconds,
            )
        try:
            async with on_disconnect(receive, generation.abort):
                async for deltas in generation.deltas():
                    for delta in deltas:
                        shape.choices[delta.index].take(delta)
        finally:
            generation.close()
        body = {
            **head,
            "choices": [choice.entry() for choice in shape.choices],
            "usage": generation.usage(reasoning_tokens=shape.reasoning_tokens()),
            **shape.extras(),
        }
        if prepared.ignored:
            body["x_inferno"] = {"ignored": prepared.ignored}
        return Response(body, media_type="application/json")


async def _events(
    generation: Generation, shape: Shape[Any], chunks: Chunks
) -> AsyncGenerator[bytes, None]:
    choices = shape.choices
    try:
        for choice in choices:
            if (opening := choice.opening(chunks)) is not None:
                yield opening
        async with aclosing(generation.deltas()) as deltas:
            async for some in deltas:
                for delta in some:
                    choice = choices[delta.index]
                    choice.take(delta)
                    for event in choice.events(chunks):
                        yield event
        if all(choice.finish for choice in choices):
            yield chunks.end(reasoning_tokens=shape.reasoning_tokens())
    except Exception as error:
        yield frame(error)


@define(eq=False)
class Generation:
    """One HTTP request in the engine: one or more prompts with `params.n` outputs each. Output j of
    prompt i has index i * n + j.

    Use: create, `open`, read `deltas` to the end, `close`.
    """

    llm: AsyncLLM
    limiter: Limiter
    metrics: Metrics
    prepared: Prepared
    id: str = field(factory=lambda: uuid.uuid4().hex)
    created: int = field(factory=lambda: int(time.time()))
    completion_tokens: int = 0
    _started: float = field(factory=time.monotonic)
    _last: dict[int, float] = field(factory=dict)
    """Time of each output's latest token."""
    _cached: dict[int, int] = field(factory=dict)
    """Each prompt's number of cached tokens."""
    _aborted: Literal["client", "shutdown"] | None = None
    _ended: bool = False
    _stream: AsyncGenerator[list[TextDelta], None] | None = None
    """Once open."""

    @property
    def num_outputs(self) -> int:
        return self.prepared.num_outputs

    def open(self) -> None:
        """Check the request and admit it. Raises errors that become a status code: an invalid
        parameter, a full queue, a restarting engine."""
        prepared = self.prepared
        self._stream = self.llm.stream_all(
            prepared.prompts,
            prepared.params,
            request_id=self.id,
            priority=prepared.priority,
            cache_salt=prepared.cache_salt,
        )
        if not self.llm.alive:
            raise EngineDeadError("the engine is restarting", "Try again in a moment.")
        self.limiter.admit(self)

    def close(self) -> None:
        if not self._ended:
            self.abort()
        self.limiter.release(self)

    def abort(self, why: Literal["client", "shutdown"] = "client") -> None:
        """End `deltas`: normally if the client has disconnected, with ShuttingDownError if the
        server shuts down."""
        if self._aborted is None:
            self._aborted = why
            self.metrics.finished("abort", self.num_outputs)
        self.llm.abort(self.id)

    async def deltas(self) -> AsyncGenerator[list[TextDelta], None]:
        """Yield what is new since the last read: for a slow reader, text accumulates instead of a
        queue. Raises EngineDeadError."""
        assert self._stream is not None, "open it first"
        if self._gone():
            return
        async with aclosing(self._stream) as stream:
            async for deltas in stream:
                self._count(deltas)
                if self._gone():
                    return
                if any(d.finish_reason == "abort" for d in deltas):
                    raise InfernoError(
                        "the engine aborted the request", "See the server's log for the reason."
                    )
                if self.prepared.prompt_only:
                    deltas = [_without_output(delta) for delta in deltas]
                yield deltas
        self._ended = not self._gone()

    def usage(self, *, reasoning_tokens: int | None = None) -> dict[str, object]:
        """OpenAI's usage object, for the tokens so far."""
        prompt_tokens = sum(map(len, self.prepared.prompts))
        usage: dict[str, object] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }
        if reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        return usage

    def _gone(self) -> bool:
        """Whether the client has disconnected. Raises ShuttingDownError if the server shuts
        down."""
        if self._aborted == "shutdown":
            raise ShuttingDownError(
                "the server shut down before the answer was complete", "Try again."
            )
        return self._aborted is not None

    def _count(self, deltas: list[TextDelta]) -> None:
        """Count new tokens, and measure their latencies."""
        now = time.monotonic()
        for delta in deltas:
            index, count = delta.index, len(delta.token_ids)
            if not self.prepared.prompt_only:
                self.completion_tokens += count
            prompt, output = divmod(index, self.prepared.params.n)
            if output == 0:  # the others reuse the prompt that the first computed
                self._cached[prompt] = max(self._cached.get(prompt, 0), delta.num_cached)
            if count:
                self.metrics.tokens(
                    count, now - self._last.get(index, self._started), first=index not in self._last
                )
                self._last[index] = now
            if delta.finish_reason and delta.finish_reason != "abort":
                self.metrics.finished(delta.finish_reason, 1, now - self._started)


def _without_output(delta: TextDelta) -> TextDelta:
    finish = delta.finish_reason if delta.finish_reason is None else "length"
    return evolve(delta, text="", token_ids=(), logprobs=None, finish_reason=finish)


def _checked(salt: str | None) -> str:
    if salt is None:
        return ""
    if not 0 < len(salt) <= 128 or any(c in salt for c in "@/\\\0"):
        raise RequestError(
            "invalid cache_salt",
            "Give 1 to 128 characters without @, / and \\.",
            param="cache_salt",
        )
    return salt
