"""The engine in its own process, driven from asyncio: requests in, a stream of tokens for each."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Callable
from typing import Self

from attrs import define, evolve, field

from inferno.contracts import GrammarSpec
from inferno.errors import AsleepError, EngineDeadError, InfernoError
from inferno.images.mediums import Medium
from inferno.images.pixels import Picture, PixelFiles
from inferno.plan import Plan
from inferno.process import protocol
from inferno.process.grammar_check import GrammarChecker
from inferno.process.health import EngineView, Health
from inferno.process.heartbeat import BEAT_SECONDS
from inferno.process.image_reader import ImageReader
from inferno.process.launch import EngineProcess
from inferno.process.supervisor import Supervisor
from inferno.process.watchdog import ENGINE_TIMEOUT
from inferno.request.requests import (
    FIRST_VERSION,
    EngineOutput,
    EngineStats,
    FinishReason,
    Request,
)
from inferno.request.sessions import SessionView


@define(eq=False)
class TokenStream:
    """One request's tokens. `take` returns all that arrived since the last call, so that a slow
    reader costs only the memory of its tokens; iterating waits and takes until a token finishes the
    request. Both raise EngineDeadError. May be abandoned after `abort`."""

    request_id: str
    news: asyncio.Event = field(factory=asyncio.Event)
    """Set while there is something to take, an error included. Several streams may share one."""
    _tokens: list[EngineOutput] = field(factory=list, init=False)
    _error: InfernoError | None = field(default=None, init=False)
    _done: bool = field(default=False, init=False)
    has_begun: bool = field(default=False, init=False)
    """Whether a token has come."""

    def feed(self, token: EngineOutput) -> None:
        self.has_begun = True
        self._tokens.append(token)
        self._done = token.finish is not None
        self.news.set()

    def fail(self, error: InfernoError) -> None:
        self._error = error
        self.news.set()

    def take(self) -> list[EngineOutput]:
        """Return the tokens since the last call. An error is raised only after the last of them was
        taken."""
        tokens, self._tokens = self._tokens, []
        if self._error is not None:
            if not tokens:
                raise self._error
            self.news.set()  # for the call that raises it
        return tokens

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[EngineOutput]:
        while not (tokens := self.take()):
            if self._done:
                raise StopAsyncIteration
            await self.news.wait()
            self.news.clear()
        return tokens


class EngineClient:
    """Sends requests to the engine process, and gives each one's tokens to its stream. If the
    process ends, pending requests fail and another is started."""

    def __init__(
        self,
        plan: Plan,
        *,
        timeout: float = ENGINE_TIMEOUT,
        beat: float = BEAT_SECONDS,
        expect_grammars: bool = False,
        early: EngineProcess | None = None,
        name: str = "",
        sees: bool = True,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        """`timeout` is the silence in seconds after which a hung process is replaced, 0 for never;
        `beat` the time between its signs of life. With `expect_grammars`, the process that checks
        grammars is started once the engine is ready, instead of with the first grammar. `early`
        is an engine process that was launched before (`launch_early`). `name` is what the log calls
        it, if not as its model. Unless it `sees`, another client reads its requests' images.
        `on_lost` is called when the requests of a process that does not answer have been given
        up."""
        self._stats = EngineStats()
        self._engine = Supervisor(
            plan,
            self._take,
            self._fail_all,
            timeout=timeout,
            beat=beat,
            early=early,
            on_lost=self._lost,
            name=name,
        )
        self._checker, self._on_lost = GrammarChecker(plan), on_lost
        self._images: ImageReader | None = None
        if sees and plan.media:
            # Now: a confined engine process may read no folder that is made after its start.
            nbytes = sum(use.cache_bytes for use in plan.media)
            self._images = ImageReader(plan, PixelFiles(nbytes))
        self._expects_grammars = expect_grammars and bool(plan.grammars)
        self._preparing: asyncio.Task[None] | None = None
        self._streams: dict[str, TokenStream] = {}
        self._given_up = 0
        self._calls: dict[int, asyncio.Future[list[SessionView]]] = {}
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it was started."""
        self._aborting: Counter[str] = Counter()
        """Ids whose tokens belong to an aborted request until the engine confirms the abort: the id
        may already be in use again."""
        self.asleep, self.paused, self.weight_version = False, False, FIRST_VERSION
        """Whether the engine is asleep or paused, and the version of its weights. Another process
        is neither, with the weights of the checkpoint."""
        self._controls: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count()

    @property
    def plan(self) -> Plan:
        """Once the engine is ready, the plan that it runs, with what it measured."""
        return self._engine.plan

    @property
    def alive(self) -> bool:
        """Whether the engine takes requests and gives signs of life."""
        return self._engine.alive

    @property
    def stalled(self) -> bool:
        """Whether the engine runs a step that takes far longer than it should."""
        return self._engine.stalled

    @property
    def stats(self) -> EngineStats:
        """What the engine counts. The requests are counted here while it says nothing: those that
        have had a token run, the others wait."""
        if self._engine.alive:
            return self._stats
        begun = sum(stream.has_begun for stream in self._streams.values())
        return evolve(self._stats, num_running=begun, num_waiting=len(self._streams) - begun)

    @property
    def restarts(self) -> int:
        """How many engine processes ended or hung."""
        return self._engine.restarts

    @property
    def engines(self) -> tuple[EngineView, ...]:
        """None: it has one."""
        return ()

    @property
    def killed(self) -> bool:
        """Whether the engine process was ended from outside, and not by what it computed."""
        return self._engine.killed

    @property
    def failed_starts(self) -> int:
        """How many starts of an engine process have failed one after another."""
        return self._engine.failed_starts

    @property
    def health(self) -> Health:
        """How the engine process and the one that checks grammars are."""
        silence, still = self._engine.quiet
        return Health(
            restarts=self._engine.restarts,
            failed_starts=self._engine.failed_starts,
            silence=silence,
            still=still,
            given_up=self._given_up,
            checks=self._checker.checks,
            check_seconds=self._checker.seconds,
            checker_kills=self._checker.kills,
        )

    @property
    def pid(self) -> int | None:
        """The engine process's id, or None while there is none."""
        return self._engine.pid

    @property
    def scratch(self) -> str | None:
        """The folder of the engine process's temporary files, if it is confined."""
        return self._engine.scratch

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises the error with which it failed."""
        self._loop = asyncio.get_running_loop()
        await self._engine.start()
        if self._expects_grammars:
            self._preparing = asyncio.create_task(self._checker.start())

    async def close(self, *, patient: bool = False) -> None:
        """Stop the process. Pending requests fail with EngineDeadError. If `patient`, wait until
        packed weights for the next start are written, which takes seconds; otherwise give up
        writing them. In a child of fork, whose parent has the process, it does nothing."""
        if self._pid != os.getpid():
            return
        self._check_caller()
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
        await self._checker.close()
        await self._engine.close(patient=patient)
        if self._images is not None:
            await self._images.close()

    async def revive(self) -> None:
        """Start the process now if it ended, or has stalled. Raises the error with which that
        fails."""
        self._check_caller()
        await self._engine.revive()

    async def check(self, spec: GrammarSpec) -> None:
        """Raise GrammarError if a grammar cannot be compiled, in another process than the
        engine's."""
        self._check_caller()
        if all(use.kind != spec.kind for use in self.plan.grammars):
            from inferno.constraints import hint_for, uncompiled  # numpy, for the engine's masks

            hint = await asyncio.to_thread(hint_for, self.plan, spec.kind)
            raise uncompiled(spec.kind, hint)
        await self._checker.check(spec)

    async def see(self, data: bytes, param: str, medium: Medium) -> Picture:
        """Decode and prepare a file of an image or audio, in another process than the engine's.
        Raises RequestError for one that cannot be used, ImagesBusyError."""
        self._check_caller()
        assert self._images is not None, "only a model that sees images is given any"
        return await self._images.read(data, param, medium)

    def submit(
        self,
        request: Request,
        news: asyncio.Event | None = None,
        stream: TokenStream | None = None,
    ) -> TokenStream:
        """Send a request to the engine. `news` is the stream's event, if several share one;
        `stream` is one that exists already. Raises EngineDeadError while the engine is not running
        or gives no sign of life."""
        self._check_caller()
        if self._engine.running and not self._engine.alive:
            why = "is stalled: one step takes far too long" if self.stalled else "does not respond"
            raise EngineDeadError(f"the engine {why}", "Try again in a moment.")
        if self.asleep:
            raise AsleepError()
        self._engine.send(protocol.ADD, protocol.encode(request))
        stream = stream or TokenStream(request.id, news or asyncio.Event())
        self._streams[request.id] = stream
        return stream

    def abort(self, request_id: str) -> None:
        """Drop a request: its stream ends. An unknown or finished one is ignored."""
        self._check_caller()
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return
        if self._engine.running:
            self._engine.send(protocol.ABORT, protocol.encode(request_id))
            self._aborting[request_id] += 1
        stream.feed(EngineOutput(request_id, None, FinishReason.ABORT))

    async def control(self, control: protocol.Control) -> None:
        """Have the engine do something between two steps, and wait until it is done. Raises the
        error with which that failed, and EngineDeadError. A caller that is cancelled does not stop
        it."""
        self._check_caller()
        control = evolve(control, number=next(self._numbers))
        self._engine.send(protocol.CONTROL, protocol.encode(control))
        done = self._controls[control.number] = asyncio.get_running_loop().create_future()
        await done

    def _controlled(self, answer: protocol.Controlled) -> None:
        self.asleep, self.paused = answer.asleep, answer.paused
        self.weight_version = answer.weight_version
        done = self._controls.pop(answer.number)
        if done.cancelled():
            return
        if answer.failure is None:
            done.set_result(None)
        else:
            done.set_exception(answer.failure.error())

    async def sessions(
        self, owner: str, name: str | None = None, *, limit: int = 1, ends: bool = False
    ) -> list[SessionView]:
        """Return what is kept of an owner's sessions, used last first, or of one. `ends`: and end
        it. Raises EngineDeadError."""
        self._check_caller()
        call = next(self._numbers)
        wanted = protocol.SessionsWanted(call, owner, name, limit, ends)
        self._engine.send(protocol.SESSIONS, protocol.encode(wanted))
        self._calls[call] = asyncio.get_running_loop().create_future()
        try:
            return await self._calls[call]
        finally:
            del self._calls[call]

    def _check_caller(self) -> None:
        """Raise InfernoError in a child of fork and in another event loop than the one that started
        it: only that one reads what the process sends."""
        if self._pid != os.getpid():
            raise InfernoError(
                "this process was forked after the engine was made: it belongs to the parent",
                "Make another one in the child.",
            )
        if self._loop is not None and self._loop is not _running_loop():
            raise InfernoError(
                "the engine was started in another event loop",
                "Call it there (asyncio.run_coroutine_threadsafe), or start one engine in each "
                "loop; threads without a loop share an LLM.",
            )

    def _take(self, kind: bytes, body: bytes) -> None:
        """Handle one message of the running engine."""
        if kind == protocol.TOKENS:
            for token in protocol.decode_tokens(body):
                self._hand_out(token)
        elif kind == protocol.ABORTED:
            self._aborting -= Counter([protocol.decode_text(body)])
        elif kind == protocol.STATS:
            self._stats = protocol.decode_stats(body)
        elif kind == protocol.CONTROLLED:
            self._controlled(protocol.decode_controlled(body))
        elif kind == protocol.SESSIONS:
            reply: protocol.SessionsFound = protocol.decode_found(body)
            if (call := self._calls.get(reply.call)) is not None and not call.done():
                call.set_result(reply.views)

    def _hand_out(self, token: EngineOutput) -> None:
        stream = self._streams.get(token.request_id)
        if stream is None or token.request_id in self._aborting:
            return
        if token.finish is not None:
            del self._streams[token.request_id]
        stream.feed(token)

    def _lost(self) -> None:
        self.give_up()
        self._on_lost()

    def give_up(self) -> None:
        """Fail the requests of an engine that does not answer. If it goes on, it drops them."""
        streams, self._streams = self._streams, {}
        self._given_up += len(streams)
        error = EngineDeadError(
            "the engine does not respond, or runs a step that takes far too long",
            "Send the request again in a moment.",
        )
        for id, stream in streams.items():
            self._engine.send(protocol.ABORT, protocol.encode(id))
            self._aborting[id] += 1
            stream.fail(error)

    def _fail_all(self, error: EngineDeadError) -> None:
        streams, self._streams = self._streams, {}
        self._aborting.clear()
        self.asleep, self.paused, self.weight_version = False, False, FIRST_VERSION
        for stream in streams.values():
            stream.fail(error)
        controls, self._controls = self._controls, {}
        for done in controls.values():
            if not done.cancelled():
                done.set_exception(error)
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
