"""One HTTP request's work in the engine, and the gate it comes in by."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING, Literal

from attrs import define, evolve, field

from inferno.core.types import SamplingParams
from inferno.errors import EngineDeadError, InfernoError, QueueFullError
from inferno.server.errors import ShuttingDownError

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM, TextDelta
    from inferno.server.metrics import Metrics


@define(eq=False)
class Limiter:
    """Who may come in: not more than `limit` outputs at a time, and nobody once the server is
    stopping."""

    limit: int | None = None
    """Outputs running or waiting in the engine; None for any number."""
    in_flight: int = 0
    draining: bool = False
    jobs: set[Job] = field(factory=set)

    def admit(self, job: Job) -> None:
        """Raises QueueFullError or ShuttingDownError. An admitted job must be closed."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down", "Try again.")
        if (
            self.limit is not None
            and self.in_flight
            and self.in_flight + job.num_outputs > self.limit
        ):
            raise QueueFullError(
                "too many requests are waiting",
                "Try again later, or start with more --max-waiting.",
            )
        self.in_flight += job.num_outputs
        self.jobs.add(job)

    def release(self, job: Job) -> None:
        if job in self.jobs:
            self.jobs.remove(job)
            self.in_flight -= job.num_outputs

    def drain(self, seconds: float) -> None:
        """Let nobody in any more, and cut off after `seconds` whoever still runs."""
        self.draining = True
        asyncio.get_running_loop().call_later(seconds, self.expire)

    def expire(self) -> None:
        for job in list(self.jobs):
            job.abort("shutdown")


@define(eq=False)
class Job:
    """One prompt or several, `params.n` outputs each. Output j of prompt i has index i * n + j.

    Use: create, `open`, read `deltas` to the end, `close`.
    """

    llm: AsyncLLM
    gate: Limiter
    metrics: Metrics
    prompts: Sequence[tuple[int, ...]]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    id: str = field(factory=lambda: uuid.uuid4().hex)
    created: int = field(factory=lambda: int(time.time()))
    completion_tokens: int = 0
    _started: float = field(factory=time.monotonic)
    _last: dict[int, float] = field(factory=dict)
    _cached: dict[int, int] = field(factory=dict)
    _aborted: Literal["client", "shutdown"] | None = None
    _ended: bool = False
    _sources: list[AsyncIterator[list[TextDelta]]] = field(factory=list)

    @property
    def num_outputs(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached.values())

    def open(self) -> None:
        """Raises what should become a status code: a bad parameter, a full queue, an engine that is
        away."""
        if not self.llm.alive:
            raise EngineDeadError("the engine is restarting", "Try again in a moment.")
        self._sources = [self._source(i) for i in range(len(self.prompts))]
        self.gate.admit(self)

    def close(self) -> None:
        if not self._ended:
            self.abort()
        self.gate.release(self)

    def abort(self, why: Literal["client", "shutdown"] = "client") -> None:
        """Ends `deltas`: quietly when the client is gone, with ShuttingDownError when the server is
        going."""
        if self._aborted is None:
            self._aborted = why
            self.metrics.finished("abort", self.num_outputs)
        for i in range(len(self._sources)):
            self.llm.abort(f"{self.id}-{i}")

    async def deltas(self) -> AsyncGenerator[list[TextDelta], None]:
        """What came since the last look, so a slow reader holds text, not a queue. Raises
        EngineDeadError."""
        if self._gone():
            return
        async with contextlib.aclosing(_merge(self._sources)) as merged:
            async for source, deltas in merged:
                self._note(source, deltas)
                if self._gone():
                    return
                if any(d.finish_reason == "abort" for d in deltas):
                    raise InfernoError(
                        "the engine gave the request up", "The server's log has the reason."
                    )
                yield (
                    [evolve(d, index=source * self.params.n + d.index) for d in deltas]
                    if source
                    else deltas
                )
        self._ended = not self._gone()

    def usage(self, *, reasoning_tokens: int | None = None) -> dict[str, object]:
        """OpenAI's usage object, as of now."""
        usage: dict[str, object] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        return usage

    def _source(self, i: int) -> AsyncIterator[list[TextDelta]]:
        name = f"{self.id}-{i}"
        return self.llm.stream(
            self.prompts[i],
            self.params,
            request_id=name,
            priority=self.priority,
            cache_salt=self.cache_salt,
        )

    def _gone(self) -> bool:
        """Whether the client is; raises when it is the server."""
        if self._aborted == "shutdown":
            raise ShuttingDownError(
                "the server shut down before the answer was complete", "Try again."
            )
        return self._aborted is not None

    def _note(self, source: int, deltas: Sequence[TextDelta]) -> None:
        now = time.monotonic()
        for delta in deltas:
            index, count = source * self.params.n + delta.index, len(delta.token_ids)
            if delta.index == 0:  # the others find the prompt that the first one computed
                self._cached[source] = max(self._cached.get(source, 0), delta.num_cached)
            self.completion_tokens += count
            if count:
                self.metrics.tokens(
                    count, now - self._last.get(index, self._started), first=index not in self._last
                )
                self._last[index] = now
            if delta.finish_reason and delta.finish_reason != "abort":
                self.metrics.finished(delta.finish_reason, 1, now - self._started)


async def _merge(
    sources: Sequence[AsyncIterator[list[TextDelta]]],
) -> AsyncGenerator[tuple[int, list[TextDelta]], None]:
    """(source, deltas) as they come. Each source is asked again only after its last answer was
    taken."""
    if len(sources) == 1:  # the common case, without a task per step
        async for deltas in sources[0]:
            yield 0, deltas
        return
    waiting = {asyncio.ensure_future(anext(source)): i for i, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                i = waiting.pop(task)
                try:
                    deltas = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(sources[i]))] = i
                yield i, deltas
    finally:
        for task in waiting:
            task.cancel()
