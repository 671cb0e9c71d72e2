"""`AsyncLLM`: the engine in a separate process, with any number of concurrent callers. Imports no
torch."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from attrs import evolve

from inferno.contracts import RequestField
from inferno.errors import GrammarError, RequestError
from inferno.images.mediums import IMAGE, Medium
from inferno.images.pixels import Picture
from inferno.llm.adapters import reading
from inferno.llm.async_pooling import AsyncPooling
from inferno.llm.client import Client, Tokens
from inferno.llm.controls import Controls
from inferno.llm.grammars import refused_grammar
from inferno.llm.images import Source, check_read, read_elsewhere
from inferno.llm.outputs import OutputBuilder, ParentRequest, RequestOutput, TextDelta
from inferno.llm.preprocessor import Preprocessor, open_for
from inferno.llm.prompts import Messages, Prompt
from inferno.plan import AdapterUse, Opened, Plan
from inferno.process.health import EngineView, Health
from inferno.process.launch import EngineProcess
from inferno.request.requests import EngineStats, Reduction
from inferno.request.sampling_params import SamplingParams
from inferno.request.sessions import SessionHint, SessionView, hint_of, short_name


class AsyncLLM(Controls, AsyncPooling):
    """A served model, with `LLM`'s arguments. The constructor makes the plan; `start()` or
    `async with` starts the engine and meanwhile reads the tokenizer, if nothing has used it yet. An
    engine without a sign of life for `engine_timeout` seconds is replaced (default 45; 0: never).
    With `expect_grammars`, as in a server, the first grammar need not wait for the process that
    checks it.
    """

    def __init__(
        self,
        ref: str | None = None,
        *,
        model: str | None = None,
        chat_template: str | None = None,
        engine_timeout: float | None = None,
        expect_grammars: bool = False,
        **options: Any,
    ) -> None:
        opened = open_for(ref or model, options)
        self._begin(opened, chat_template, engine_timeout, expect_grammars)

    @classmethod
    def of_opened(
        cls,
        opened: Opened,
        chat_template: str | None = None,
        *,
        engine_timeout: float | None = None,
        expect_grammars: bool = False,
        early: EngineProcess | None = None,
    ) -> Self:
        """An AsyncLLM for an already opened model, which it closes once the tokenizer is read.
        `early` is an engine process that was launched before."""
        self = cls.__new__(cls)
        self._begin(opened, chat_template, engine_timeout, expect_grammars, early)
        return self

    @classmethod
    def of(cls, client: Client, preprocessor: Preprocessor) -> Self:
        """An AsyncLLM around an existing client."""
        self = cls.__new__(cls)
        self._client, self._opened, self._live = client, None, {}
        self._preprocessor = preprocessor
        return self

    def _begin(
        self,
        opened: Opened,
        chat_template: str | None,
        engine_timeout: float | None,
        expect_grammars: bool,
        early: EngineProcess | None = None,
    ) -> None:
        from inferno.process.engines.opening import client_for
        from inferno.process.watchdog import ENGINE_TIMEOUT

        timeout = ENGINE_TIMEOUT if engine_timeout is None else engine_timeout
        self._client: Client = client_for(
            opened.plan, timeout=timeout, expect_grammars=expect_grammars, early=early
        )
        self._opened: Opened | None = opened
        self._chat_template = chat_template
        self._live: dict[str, Sequence[OutputBuilder]] = {}

    @cached_property
    def _preprocessor(self) -> Preprocessor:
        assert self._opened is not None, "`of` sets the preprocessor"
        with self._opened:
            return Preprocessor.open(self._opened, self._chat_template)

    async def start(self) -> None:
        """Load the model. Raises any InfernoError from the engine process or the tokenizer."""
        engine = asyncio.create_task(self._client.start())
        try:
            # It takes a second, while the engine process uses another core.
            await asyncio.to_thread(lambda: self._preprocessor)
        except BaseException:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            await self._client.close()
            raise
        await engine
        self._preprocessor = evolve(self._preprocessor, max_model_len=self.plan.max_model_len)

    async def close(self) -> None:
        """Stop the engine process."""
        await self._client.close()

    async def revive(self) -> None:
        """Start the engine process now if it has ended, or is stalled, instead of at its next
        attempt. Raises the error with which that fails."""
        await self._client.revive()

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
    def preprocessor(self) -> Preprocessor:
        """The model's text side: tokenizer, chat template, limits, default parameters."""
        return self._preprocessor

    @property
    def plan(self) -> Plan:
        """The plan that the engine runs; once it is started, with what it measured."""
        return self._client.plan

    @property
    def request_fields(self) -> Mapping[str, RequestField]:
        """Fields of request bodies that plugins understand, by name."""
        return self._opened.parts.request_fields if self._opened is not None else {}

    @property
    def model_id(self) -> str:
        return self.plan.model_id

    @property
    def alive(self) -> bool:
        """Whether the engine process is running."""
        return self._client.alive

    @property
    def stalled(self) -> bool:
        """Whether the engine runs a step that takes far longer than it should."""
        return self._client.stalled

    @property
    def failed_starts(self) -> int:
        """How many starts of the engine process have failed one after another."""
        return self._client.failed_starts

    @property
    def health(self) -> Health:
        """How the engine process and the one that checks grammars are."""
        return self._client.health

    @property
    def stats(self) -> EngineStats:
        return self._client.stats

    @property
    def engines(self) -> tuple[EngineView, ...]:
        """How each engine is, if there are several."""
        return self._client.engines

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        lora: str | None = None,
        session: str | None = None,
    ) -> AsyncGenerator[list[TextDelta], None]:
        """Stream the answer, its `n` outputs interleaved. A slow reader gets longer lists, not more
        of them.

        Raises RequestError immediately, EngineDeadError during iteration. Closing the iterator or
        cancelling the task that reads it aborts the request in the engine.
        """
        hint = hint_of(session)
        parent = self._prepare(prompt, params, request_id, priority, cache_salt, None, lora, hint)
        return self._run(parent.id, parent.builders)

    def stream_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        pooling: Reduction | None = None,
        lora: str | None = None,
        session: SessionHint | None = None,
        tenant: str = "",
        engine: int | None = None,
    ) -> AsyncGenerator[list[TextDelta], None]:
        """Stream the answers to several prompts as one request, like `stream`. Output j of prompt i
        has index i * n + j. With `pooling`, an output is the prompt's embedding,
        or by "score" the logits of its labels. `lora` names an adapter; the blocks of a `session`
        are kept, if anything keeps sessions. Queues may share the engine among `tenant`s. `engine`
        says which of several is to answer, if it can."""
        self._check_unused(request_id)
        request_id = request_id or uuid.uuid4().hex
        others = cache_salt, pooling, lora, session, tenant, engine
        parents = [
            self._prepare(prompt, params, f"{request_id}-{i}", priority, *others)
            for i, prompt in enumerate(prompts)
        ]
        builders = [builder for parent in parents for builder in parent.builders]
        for index, builder in enumerate(builders):
            builder.index = index
        return self._run(request_id, builders)

    def abort(self, request_id: str) -> None:
        """End a request's stream normally: its outputs finish with "abort". Unknown ids are
        ignored."""
        for builder in self._live.get(request_id, ()):
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
        lora: str | None = None,
        session: str | None = None,
    ) -> RequestOutput:
        """Return the whole answer. Cancelling the call aborts the request."""
        hint = hint_of(session)
        parent = self._prepare(prompt, params, request_id, priority, cache_salt, None, lora, hint)
        async with aclosing(self._run(parent.id, parent.builders)) as stream:
            deltas = [d async for some in stream for d in some]
        return parent.output(deltas)

    async def chat(
        self, messages: Messages, params: SamplingParams | None = None, **template_kwargs: Any
    ) -> RequestOutput:
        """Return the whole answer to a conversation."""
        messages = await read_elsewhere(messages, self._preprocessor.images, self.see)
        prompt = self._preprocessor.encode_chat(messages, **template_kwargs)
        return await self.generate(prompt, self._preprocessor.chat_params(params, prompt))

    def _prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        cache_salt: str,
        pooling: Reduction | None = None,
        lora: str | None = None,
        session: SessionHint | None = None,
        tenant: str = "",
        engine: int | None = None,
    ) -> ParentRequest:
        self._check_unused(request_id)
        return self._preprocessor.prepare(
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            pooling=pooling,
            lora=lora,
            session=session,
            tenant=tenant,
            engine=engine,
        )

    async def load_lora(self, name: str, ref: str) -> AdapterUse:
        """Let requests name an adapter, like `LLM.load_lora`."""
        names = self._preprocessor.adapters
        use = await asyncio.to_thread(names.look_up, name, ref)
        builder = reading(use.adapter)
        async with aclosing(self._run(builder.request.id, [builder])) as stream:
            async for _ in stream:
                pass
        names.add(use)
        return use

    async def sessions(
        self, name: str | None = None, *, owner: str = "", limit: int = 100
    ) -> list[SessionView]:
        """Return what is kept of an owner's sessions, used last first, or of one."""
        return await self._client.sessions(owner, name and short_name(name), limit=limit)

    async def end_session(self, name: str, *, owner: str = "") -> bool:
        """Forget a session, and what is cached for it alone. Returns whether there was one."""
        return bool(await self._client.sessions(owner, short_name(name), ends=True))

    def _check_unused(self, request_id: str | None) -> None:
        if request_id in self._live:
            raise RequestError(
                f"request id {request_id!r} is in use", "Choose another one.", param="request_id"
            )

    async def check(self, params: SamplingParams) -> None:
        """Compile the request's grammar in another process, within limits of time and memory, and
        raise RequestError if that fails. `stream` does so too, when it is first read."""
        if (spec := params.structured_outputs) is not None:
            try:
                await self._client.check(spec)
            except GrammarError as error:
                raise refused_grammar(spec, error) from error

    async def see(self, data: bytes, param: str = "image", medium: Medium = IMAGE) -> Picture:
        """Decode and prepare an image's file, or one of audio, in a separate process within limits
        of time and memory: it may stand for it in a conversation. Raises RequestError for one that
        cannot be used."""
        check_read([Source(data, param, medium)], self._preprocessor.images, self.model_id)
        return await self._client.see(data, param, medium)

    async def _run(
        self, request_id: str, builders: Sequence[OutputBuilder]
    ) -> AsyncGenerator[list[TextDelta], None]:
        """Follow all outputs of a call concurrently; the first error aborts the others."""
        news = asyncio.Event()
        running: dict[OutputBuilder, Tokens] = {}
        self._live[request_id] = builders
        try:
            for builder in builders[:1]:
                await self.check(builder.request.params)
            for builder in builders:
                running[builder] = self._client.submit(builder.request, news)
            while running:
                await news.wait()
                news.clear()
                done = []
                for builder, tokens in running.items():
                    for token in tokens.take():
                        builder.push(token)
                    if builder.done:
                        done.append(builder)
                for builder in done:
                    del running[builder]
                    if not builder.ended:  # by a stop string, which the engine does not know
                        self._client.abort(builder.request.id)
                if deltas := [d for b in builders if (d := b.take())]:
                    yield deltas
                for builder in done:
                    if builder.error is not None:
                        raise builder.error
        finally:
            for builder in running:
                self._client.abort(builder.request.id)
            self._live.pop(request_id, None)
