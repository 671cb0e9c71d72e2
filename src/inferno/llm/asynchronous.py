"""`AsyncLLM`: the engine in its own process, any number of concurrent callers. Imports no torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from functools import cached_property
from types import TracebackType
from typing import Any, Protocol, Self

from inferno.core.types import EngineOutput, EngineStats, Request, SamplingParams
from inferno.errors import RequestError
from inferno.llm.outputs import OutputBuilder, RequestOutput, TextDelta
from inferno.llm.preprocessor import Job, Messages, Preprocessor, Prompt, Prompting, open_for
from inferno.plan import Opened, Plan


class _Client(Protocol):
    """What `AsyncLLM` needs of `inferno.process.EngineClient`."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def submit(self, request: Request) -> AsyncIterable[list[EngineOutput]]: ...
    def abort(self, request_id: str) -> None: ...
    @property
    def alive(self) -> bool: ...
    @property
    def stats(self) -> EngineStats: ...


class AsyncLLM(Prompting):
    """A served model. Arguments are `LLM`'s; the plan is made at once, the engine starts with
    `start()` or `async with`, and beside it the tokenizer is read, unless something has asked for
    it before."""

    def __init__(
        self,
        ref: str | None = None,
        *,
        model: str | None = None,
        chat_template: str | None = None,
        **options: Any,
    ) -> None:
        self._begin(open_for(ref or model, options), chat_template)

    @classmethod
    def of_opened(cls, opened: Opened, chat_template: str | None = None) -> Self:
        """An AsyncLLM of a model that is open already. Closes it once the tokenizer is read."""
        self = cls.__new__(cls)
        self._begin(opened, chat_template)
        return self

    @classmethod
    def of(cls, client: _Client, preprocessor: Preprocessor, plan: Plan) -> Self:
        """An AsyncLLM around a client that exists already."""
        self = cls.__new__(cls)
        self._client, self.plan, self._opened, self._live = client, plan, None, {}
        self._preprocessor = preprocessor
        return self

    def _begin(self, opened: Opened, chat_template: str | None) -> None:
        from inferno.process import EngineClient

        self.plan = opened.plan
        self._client: _Client = EngineClient(opened.plan)
        self._opened: Opened | None = opened
        self._chat_template = chat_template
        self._live: dict[str, Job] = {}

    @cached_property
    def _preprocessor(self) -> Preprocessor:  # type: ignore[override]  # mypy: no settable properties
        assert self._opened is not None, "one that is given needs no opening"
        with self._opened:
            return Preprocessor.open(self._opened, self._chat_template)

    async def start(self) -> None:
        """Load the model. Raises whatever InfernoError the engine process or the tokenizer met."""
        engine = asyncio.create_task(self._client.start())
        try:
            await asyncio.to_thread(
                lambda: self._preprocessor
            )  # a second's work, and the engine's process has a core of its own
        except BaseException:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            await self._client.close()
            raise
        await engine

    async def close(self) -> None:
        """End the engine process."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def model_id(self) -> str:
        return self.plan.model_id

    @property
    def alive(self) -> bool:
        """Whether the engine process runs."""
        return self._client.alive

    @property
    def stats(self) -> EngineStats:
        return self._client.stats

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[list[TextDelta], None]:
        """The answer as it comes, the `n` outputs interleaved; a slow reader gets longer lists, not
        more of them.

        Raises RequestError at once, EngineDeadError while it runs. Closing the iterator, or
        cancelling the task that reads it, aborts the request in the engine.
        """
        return self._run(self._job(prompt, params, request_id, priority, cache_salt))

    def abort(self, request_id: str) -> None:
        """End a request's stream, normally: its outputs finish with "abort". Unknown ids are no
        error."""
        job = self._live.get(request_id)
        for builder in job.builders if job else ():
            if not builder.done:
                self._client.abort(builder.request.id)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> RequestOutput:
        """The whole answer. Cancelling it aborts the request."""
        job = self._job(prompt, params, request_id, priority, cache_salt)
        async with aclosing(self._run(job)) as stream:
            deltas = [d async for some in stream for d in some]
        return job.output(deltas, self.tokenizer)

    async def chat(
        self, messages: Messages, params: SamplingParams | None = None, **template_kwargs: Any
    ) -> RequestOutput:
        """The whole answer to a conversation."""
        return await self.generate(self.encode_chat(messages, **template_kwargs), params)

    def _job(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        cache_salt: str,
    ) -> Job:
        if request_id in self._live:
            raise RequestError(
                f"request id {request_id!r} is in use", "Choose another one.", param="request_id"
            )
        return self._preprocessor.job(
            prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt
        )

    async def _run(self, job: Job) -> AsyncGenerator[list[TextDelta], None]:
        self._live[job.id] = job
        steps = (
            self._follow(job.builders[0])
            if len(job.builders) == 1
            else self._follow_all(job.builders)
        )
        try:
            async with aclosing(steps):
                async for _ in steps:
                    deltas = [d for b in job.builders if (d := b.take())]
                    if deltas:
                        yield deltas
        finally:
            self._live.pop(job.id, None)

    async def _follow(self, builder: OutputBuilder) -> AsyncGenerator[None, None]:
        """Run one request, filling its builder; yields when there is news."""
        try:
            async for tokens in self._client.submit(builder.request):
                for token in tokens:
                    builder.push(token)
                if builder.done:
                    break
                yield
            else:
                builder.end()
            if builder.error is not None:
                raise builder.error
            yield
        finally:
            if not builder.ended:
                self._client.abort(builder.request.id)

    async def _follow_all(self, builders: Sequence[OutputBuilder]) -> AsyncGenerator[None, None]:
        """The same for several requests at once; the first to fail fails all."""
        news = asyncio.Event()

        async def follow(builder: OutputBuilder) -> None:
            async with aclosing(self._follow(builder)) as steps:
                async for _ in steps:
                    news.set()

        tasks = [asyncio.create_task(follow(b)) for b in builders]
        for task in tasks:
            task.add_done_callback(lambda _: news.set())
        try:
            while True:
                await news.wait()
                news.clear()
                finished = all(task.done() for task in tasks)
                for task in tasks:
                    if task.done():
                        task.result()
                yield
                if finished:
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
