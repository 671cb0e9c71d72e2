"""Generates the answer to a prepared request, for all endpoints."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, Self

from attrs import define, evolve, field, frozen

from inferno.errors import (
    AsleepError,
    EngineDeadError,
    InfernoError,
    ModelUnavailableError,
    RequestTimeoutError,
    ShuttingDownError,
)
from inferno.llm.prompts import with_seconds
from inferno.request.requests import Reduction
from inferno.request.sampling_params import SamplingParams
from inferno.request.sessions import SessionHint, hint_of
from inferno.server.access.limiter import Ending, Limiter
from inferno.server.chat.rendered import Rendered
from inferno.server.fields.schema import GenerationRequest, StreamOptions
from inferno.server.generate.checks import (
    checked_engine,
    checked_salt,
    checked_timeout,
    checked_ttl,
)
from inferno.server.http.parsing import Parsed
from inferno.server.observe.record import Record, current

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM, TextDelta
    from inferno.server.observe.metrics import ModelMetrics


class Watch(Protocol):
    """What follows a generation (`server.watch`)."""

    def take(self, deltas: Sequence[TextDelta]) -> None: ...

    def end(self) -> None:
        """Called when the generation is closed, perhaps more than once."""


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
    pooling: Reduction | None = None
    """What each prompt becomes instead of being continued."""
    seconds: Sequence[int] = ()
    """Where the second text of each prompt begins (`Request.second`), if some have two."""
    engine: int | None = None
    """Which of several engines is to answer (`Request.engine`)."""
    rendered: Rendered | None = None
    """The conversation that the prompt was made from, if there is one."""
    session: str | None = None
    """The session in whose usage the request counts, and whose blocks are kept."""
    session_ttl: float | None = None
    """Seconds that they are; None: as long as any session's."""
    timeout: float | None = None
    """Seconds that the answer may take."""

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
        rendered: Rendered | None = None,
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
            cache_salt=checked_salt(data.cache_salt),
            ignored=tuple(dict.fromkeys((*parsed.ignored, *ignored))),
            prompt_only=prompt_only,
            rendered=rendered,
            session=data.session_id or data.prompt_cache_key,
            session_ttl=checked_ttl(data.session_ttl),
            timeout=checked_timeout(data.timeout),
            engine=data.engine,
        )

    @property
    def num_outputs(self) -> int:
        return len(self.prompts) * self.params.n


@define
class Times:
    """When one output's tokens came."""

    first: float
    """Seconds from the request to the first token."""
    last: float
    """Monotonic time of the latest token."""
    tokens: int = 0


@define(eq=False)
class Generation:
    """One HTTP request in the engine: one or more prompts with `params.n` outputs each. Output j of
    prompt i has index i * n + j.

    Use: create, `open`, `check`, read `deltas` to the end, `close`.
    """

    llm: AsyncLLM
    limiter: Limiter
    metrics: ModelMetrics
    prepared: Prepared
    id: str = field(factory=lambda: uuid.uuid4().hex)
    created: int = field(factory=lambda: int(time.time()))
    completion_tokens: int = 0
    watch: Watch | None = None
    """Receives what the generation yields, and its end."""
    record: Record | None = field(factory=current)
    """Of the HTTP request, if it is one."""
    partial: bool = False
    """Whether an answer that the engine aborts is told as far as it came, instead of an error."""
    _started: float = field(factory=time.monotonic)
    _times: dict[int, Times] = field(factory=dict)
    """Of each output that has begun."""
    _cached: dict[int, int] = field(factory=dict)
    """Each prompt's number of cached tokens."""
    _stored: dict[int, tuple[int, int, int]] = field(factory=dict)
    """How many of them a store loaded from host memory, from disk, and from another instance."""
    _num_drafts: int = 0
    _num_accepted: int = 0
    _aborted: Ending | None = None
    _ended: bool = False
    _stream: AsyncGenerator[list[TextDelta], None] | None = None
    """Once open."""
    _deadline: asyncio.TimerHandle | None = None
    _checking: asyncio.Future[None] | None = None
    """While the grammar is checked."""

    @property
    def num_outputs(self) -> int:
        return self.prepared.num_outputs

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prepared.prompts))

    @property
    def owner(self) -> str:
        return "" if self.record is None else self.record.owner

    @property
    def cache_salt(self) -> str:
        """The salt that the engine is given: requests of different keys share nothing."""
        salt = self.prepared.cache_salt
        return salt if self.record is None else self.record.cache_salt(salt)

    def open(self, timeout: float | None = None) -> None:
        """Check the request and admit it. It is aborted after `timeout` seconds, or fewer if the
        request says so. Raises errors that become a status code: an invalid parameter, a full
        queue, a restarting engine."""
        prepared, record = self.prepared, self.record
        self._stream = self.llm.stream_all(
            with_seconds(prepared.prompts, prepared.seconds),
            prepared.params,
            request_id=self.id,
            priority=prepared.priority if record is None else record.priority(prepared.priority),
            cache_salt=self.cache_salt,
            pooling=prepared.pooling,
            lora=self.llm.preprocessor.adapters.known(prepared.model),
            session=self._session(),
            tenant=self.owner,
            engine=checked_engine(prepared.engine, max(1, len(self.llm.engines))),
        )
        if not self.llm.alive:
            raise EngineDeadError(
                "the engine is restarting, or does not respond", "Try again in a moment."
            )
        if self.llm.is_sleeping:
            raise AsleepError()
        self.limiter.admit(self)
        if record is not None:
            try:
                self._describe(record)
            except BaseException:
                self.limiter.release(self)
                raise
        limits = [each for each in (prepared.timeout, timeout) if each]
        if limits:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(min(limits), self.abort, "timeout")

    def _session(self) -> SessionHint | None:
        """Return the session whose blocks are kept, where anything keeps them."""
        if self.llm.plan.sessions is None:
            return None
        return hint_of(self.prepared.session, self.owner, self.prepared.session_ttl)

    async def check(self) -> None:
        """Check the grammar, which may wait for those of other requests: so the request must be
        open, to count in the limit and in the timeout. Raises errors that become a status code, and
        closes the generation."""
        if self.prepared.params.structured_outputs is None:
            return
        self._checking = asyncio.ensure_future(self.llm.check(self.prepared.params))
        try:
            await self._checking
        except BaseException as error:
            self._ended = True  # the engine does not know it
            self.close()
            if isinstance(error, asyncio.CancelledError):
                self._gone()
            raise
        finally:
            self._checking = None

    def _describe(self, record: Record) -> None:
        """Add the generation to its request's record. Raises LimitError."""
        prepared, params = self.prepared, self.prepared.params
        record.prompt(self.num_prompt_tokens)
        record.streamed |= prepared.stream
        record.attributes |= {
            "gen_ai.response.id": self.id,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
        }
        tokenizer = self.llm.preprocessor.tokenizer
        if record.keeps_prompts and tokenizer is not None:
            record.prompts += [
                tokenizer.decode(ids, skip_special_tokens=False) for ids in prepared.prompts
            ]

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if not self._ended:
            self.abort()
        self.limiter.release(self)
        if self.watch is not None:
            self.watch.end()

    def abort(self, why: Ending = "client") -> None:
        """End `deltas`: normally if the client has disconnected, else with an error."""
        if self._aborted is None:
            self._aborted = why
            self.metrics.aborted(self.num_outputs)
            if self.record is not None:
                self.record.finish_reasons.append("abort")
        if self._checking is not None:
            self._checking.cancel()
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
                if not self.partial and any(d.finish_reason == "abort" for d in deltas):
                    raise InfernoError(
                        "the engine aborted the request", "See the server's log for the reason."
                    )
                if self.prepared.prompt_only:
                    deltas = [_without_output(delta) for delta in deltas]
                if self.watch is not None:
                    self.watch.take(deltas)
                yield deltas
        self._ended = not self._gone()

    def usage(self, *, reasoning_tokens: int | None = None) -> dict[str, object]:
        """OpenAI's usage object, for the tokens so far."""
        prompt_tokens = self.num_prompt_tokens
        usage: dict[str, object] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": self._prompt_details(),
        }
        details: dict[str, int] = {}
        if reasoning_tokens is not None:
            details["reasoning_tokens"] = reasoning_tokens
        if self._num_drafts:
            details["accepted_prediction_tokens"] = self._num_accepted
            details["rejected_prediction_tokens"] = self._num_drafts - self._num_accepted
        if details:
            usage["completion_tokens_details"] = details
        return usage

    def _gone(self) -> bool:
        """Whether the client has disconnected. Raises the error for another reason to abort."""
        if self._aborted == "timeout":
            raise RequestTimeoutError(
                f"the answer took longer than {time.monotonic() - self._started:.3g} s",
                "Ask for fewer tokens, or allow more time: timeout, --request-timeout.",
            )
        if self._aborted == "shutdown":
            raise ShuttingDownError(
                "the server shut down before the answer was complete", "Try again."
            )
        if self._aborted == "unload":
            raise ModelUnavailableError(
                "the model was unloaded before the answer was complete", "Try again."
            )
        return self._aborted is not None

    def _prompt_details(self) -> dict[str, object]:
        """Return where cached prompt tokens were found. The tiers are named if a store had some."""
        cached = sum(self._cached.values())
        host, disk, remote = (
            sum(each) for each in zip((0, 0, 0), *self._stored.values(), strict=True)
        )
        if not host + disk + remote:
            return {"cached_tokens": cached}
        tiers = {"memory": cached - host - disk - remote, "host": host, "disk": disk}
        if remote:
            tiers["remote"] = remote
        return {"cached_tokens": cached, "cached_tokens_details": tiers}

    def _count(self, deltas: list[TextDelta]) -> None:
        """Count new tokens, and measure their latencies."""
        now, record = time.monotonic(), self.record
        for delta in deltas:
            index, count = delta.index, len(delta.token_ids)
            times = self._times.get(index)
            self._num_drafts += delta.num_drafts
            self._num_accepted += delta.num_accepted
            if not self.prepared.prompt_only:
                self.completion_tokens += count
                if record is not None and count:
                    record.generated(count)
            prompt, output = divmod(index, self.prepared.params.n)
            if output == 0:  # the others reuse the prompt that the first computed
                before = self._cached.get(prompt, 0)
                self._cached[prompt] = now_cached = max(before, delta.num_cached)
                self._stored[prompt] = delta.num_host, delta.num_disk, delta.num_remote
                if record is not None:
                    record.cached(now_cached - before)
            if times is None and count:
                times = self._times[index] = Times(now - self._started, now)
                self.metrics.first_token(times.first, delta.queue_seconds)
                self.limiter.begun(self)
            elif times is not None and count:
                self.metrics.next_tokens(count, now - times.last)
                times.last = now
            if times is not None:
                times.tokens += count
            if delta.finish_reason and delta.finish_reason != "abort":
                self._ended_output(delta.finish_reason, index, now)

    def _ended_output(self, reason: str, index: int, now: float) -> None:
        times = self._times.get(index)
        tokens = times.tokens if times is not None else 0
        first = times.first if times is not None else None
        self.metrics.finished(reason, now - self._started, first, tokens)
        self.limiter.ended(tokens)
        if index % self.prepared.params.n == 0:
            self.metrics.prompt(len(self.prepared.prompts[index // self.prepared.params.n]))
        if self.record is not None:
            self.record.finish_reasons.append(reason)


def _without_output(delta: TextDelta) -> TextDelta:
    finish = delta.finish_reason if delta.finish_reason is None else "length"
    return evolve(delta, text="", token_ids=(), logprobs=None, finish_reason=finish)
