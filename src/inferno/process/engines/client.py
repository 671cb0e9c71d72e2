"""Several engine processes behind one client: each request goes to one, each control to all."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from inferno.contracts import GrammarSpec
from inferno.errors import AsleepError, EngineDeadError, InfernoError, UnsupportedError
from inferno.images.mediums import Medium
from inferno.images.pixels import Picture
from inferno.plan import Plan, plan_of_engine
from inferno.process.client import EngineClient, TokenStream
from inferno.process.engines.router import Placed, Router
from inferno.process.engines.totals import total_health, total_stats
from inferno.process.health import EngineView, Health
from inferno.process.launch import EngineProcess
from inferno.process.protocol import Control
from inferno.request.requests import FIRST_VERSION, EngineOutput, EngineStats, Request
from inferno.request.sessions import SessionView

_EMPTIES = ("sleep", "update_weights", "reset_prefix_cache")
"""What is done with nothing left in the caches."""
_KNOWN_VERSIONS = 64
"""Of weights: engines have none that is older."""


@define(eq=False)
class RoutedStream(TokenStream):
    """A request's tokens, whichever engine they come from."""

    client: EnginesClient = field(kw_only=True)
    placed: Placed = field(kw_only=True)
    moved: bool = False
    """Whether another engine had it before."""

    def feed(self, token: EngineOutput) -> None:
        self.client.took(self, token)
        super().feed(token)

    def fail(self, error: InfernoError) -> None:
        if not self.client.moves(self):
            super().fail(error)


@define(eq=False)
class _Joined(TokenStream):
    """What every engine answers to one request: an error, if there is one. An engine that ends
    meanwhile has not refused: another process begins anew."""

    left: int = field(kw_only=True)
    _answers: list[tuple[int, EngineOutput]] = field(factory=list)
    """Each with what it counts for."""

    def feed(self, token: EngineOutput) -> None:
        self._end(2 if token.error else 1, token)

    def fail(self, error: InfernoError) -> None:
        self._end(0, EngineOutput.failed(self.request_id, error))

    def _end(self, weight: int, token: EngineOutput) -> None:
        self._answers.append((weight, token))
        if len(self._answers) == self.left:
            super().feed(max(self._answers, key=lambda each: each[0])[1])


class EnginesClient:
    """What `EngineClient` is for one engine. One that ends is less capacity: the others go on, and
    it is started again."""

    def __init__(self, plan: Plan, *, early: EngineProcess | None = None, **given: Any) -> None:
        """`given` is what each `EngineClient` is given besides; `early` is the first one's."""
        assert plan.engines is not None, "a plan with several"
        self._use, count = plan.engines, plan.engines.count
        self._together = plan.dealt is not None
        """Whether engines share experts and compute together: then all fail when one does."""
        folder = tempfile.mkdtemp(prefix="inferno_engines_") if self._together else ""
        self._remove_folder = weakref.finalize(self, _remove, folder, os.getpid())
        self._engines = [
            EngineClient(
                plan_of_engine(plan, i, folder),
                name=f"{plan.model_id}, engine {i}",
                sees=i == 0,
                early=early if i == 0 else None,
                on_lost=self._lost,
                **(given if i == 0 else {**given, "expect_grammars": False}),
            )
            for i in range(count)
        ]
        cached = 0 if plan.cache_policy == "none" or plan.whole_prompts else plan.num_blocks
        self._router = Router(count, block_size=plan.block_size, num_blocks=cached)
        self._streams: dict[str, RoutedStream] = {}
        self._restarts = [0] * count
        """Of each engine, as far as the router knows of them."""
        self._versions = [FIRST_VERSION]
        """Of weights, in the order in which they were asked for."""
        self._updates = 0
        self._changing = 0
        """Controls that not all engines have answered yet."""
        self._closing = False

    @property
    def plan(self) -> Plan:
        """The plan that the engines run."""
        return evolve(self._engines[0].plan, engines=self._use)

    @property
    def alive(self) -> bool:
        """Whether an engine takes requests; where they compute together, whether all do."""
        alive = [engine.alive for engine in self._engines]
        return all(alive) if self._together else any(alive)

    @property
    def stalled(self) -> bool:
        """Whether none takes requests, because of a step that takes far longer than it should."""
        return not self.alive and any(engine.stalled for engine in self._engines)

    @property
    def asleep(self) -> bool:
        return any(engine.asleep for engine in self._engines)

    @property
    def paused(self) -> bool:
        return any(engine.paused for engine in self._engines)

    @property
    def weight_version(self) -> str:
        """Of the latest weights that an engine has: engines with others are outdated."""
        versions = {engine.weight_version for engine in self._engines}
        return next((each for each in reversed(self._versions) if each in versions), FIRST_VERSION)

    @property
    def stats(self) -> EngineStats:
        return total_stats([engine.stats for engine in self._engines])

    @property
    def health(self) -> Health:
        return total_health([engine.health for engine in self._engines])

    @property
    def failed_starts(self) -> int:
        return self.health.failed_starts

    @property
    def engines(self) -> tuple[EngineView, ...]:
        """How each of them is."""
        able, waits = self._able(), self._together and not self.alive
        return tuple(
            EngineView(
                state="stalled"
                if engine.stalled
                else "restarting"
                if not engine.alive
                else "waiting"
                if waits
                else "ok"
                if i in able
                else "outdated",
                pid=engine.pid,
                stats=engine.stats,
                health=engine.health,
            )
            for i, engine in enumerate(self._engines)
        )

    @property
    def scratch(self) -> str | None:
        """The first engine's folder of temporary files, if they are confined."""
        return self._engines[0].scratch

    async def start(self) -> None:
        """Start all processes, and wait until they are ready. Raises the error with which one
        failed, and leaves none."""
        starting = [asyncio.create_task(engine.start()) for engine in self._engines]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            for each in starting:
                each.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await self.close()
            raise

    async def close(self, *, patient: bool = False) -> None:
        """Stop all processes."""
        if not self._closing:
            self._closing = True
            await asyncio.gather(*(engine.close(patient=patient) for engine in self._engines))
            self._remove_folder()

    async def revive(self) -> None:
        """Start those processes now that have ended, or have stalled. Raises the error with which
        one fails."""
        await asyncio.gather(*(engine.revive() for engine in self._engines))

    async def check(self, spec: GrammarSpec) -> None:
        await self._engines[0].check(spec)

    async def see(self, data: bytes, param: str, medium: Medium) -> Picture:
        return await self._engines[0].see(data, param, medium)

    def submit(self, request: Request, news: asyncio.Event | None = None) -> TokenStream:
        """Send a request to an engine. Raises EngineDeadError if none takes any, AsleepError."""
        if self.asleep and not self._changing:
            raise AsleepError()
        able, news = self._able(), news or asyncio.Event()
        if not able:
            absent = next((e for e in self._engines if not e.alive), self._engines[0])
            return absent.submit(request, news)  # raises the error that says why
        if not request.token_ids:  # it has an adapter read and checked
            return self._submit_to_all(request, news, able)
        stream = RoutedStream(request.id, news, client=self, placed=self._place(request, able))
        try:
            self._engines[stream.placed.engine].submit(request, stream=stream)
        except BaseException:
            self._router.ended(stream.placed, complete=False)
            raise
        self._streams[request.id] = stream
        return stream

    def abort(self, request_id: str) -> None:
        """Drop a request: its stream ends. An unknown or finished one is ignored."""
        stream = self._streams.get(request_id)
        for engine in self._engines if stream is None else [self._engines[stream.placed.engine]]:
            engine.abort(request_id)

    def took(self, stream: RoutedStream, token: EngineOutput) -> None:
        """Take account of what an engine said."""
        if token.finish is None:
            self._router.took(stream.placed, token.token_id)
            return
        complete = token.finish in ("stop", "length")
        if complete:
            self._router.took(stream.placed, token.token_id)
        self._router.ended(stream.placed, complete=complete)
        self._streams.pop(stream.request_id, None)

    def moves(self, stream: RoutedStream) -> bool:
        """Give a request of an engine that has ended to another one, if that is safe: it has no
        token yet, and what ended the engine came from outside, not from what it computed. Returns
        whether it is done."""
        self._router.ended(stream.placed, complete=False)
        gone, request = stream.placed.engine, stream.placed.request
        able = [i for i in self._able() if i != gone]
        again = stream.has_begun or stream.moved or self._closing
        if able and self._engines[gone].killed and not again:
            stream.placed, stream.moved = self._place(request, able), True
            with suppress(InfernoError):
                self._engines[stream.placed.engine].submit(request, stream=stream)
                return True
            self._router.ended(stream.placed, complete=False)
        self._streams.pop(stream.request_id, None)
        return False

    async def control(self, control: Control) -> None:
        """Have all engines do something, and wait until it is done. One that is being started does
        without: it begins anew. Raises the error with which one failed, and UnsupportedError if
        engines that compute together would read weights anew."""
        loads = control.action == "update_weights" or control.level > 1
        if self._together and loads:
            raise UnsupportedError(
                "engines that share experts (--dp --ep) cannot read weights anew yet",
                "Sleep with level 1; for other weights, restart the server.",
            )
        engines = [engine for engine in self._engines if engine.alive] or self._engines[:1]
        if control.action == "update_weights":
            self._updates += 1
            control = evolve(control, version=control.version or str(self._updates))
            others = [each for each in self._versions if each != control.version]
            self._versions = [*others[-_KNOWN_VERSIONS:], str(control.version)]
        each = [control] * len(engines)
        if control.temporary:
            each = await asyncio.to_thread(_files, control, [e.scratch for e in engines])
        self._changing += 1
        try:
            calls = (engine.control(order) for engine, order in zip(engines, each, strict=True))
            ended = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            self._changing -= 1
            for i in range(len(self._engines)) if control.action in _EMPTIES else ():
                self._router.forget(i)
        for order, error in zip(each, ended, strict=True):
            if order.temporary and isinstance(error, EngineDeadError):
                Path(order.path).unlink(missing_ok=True)
        _raise(ended)

    async def sessions(
        self, owner: str, name: str | None = None, *, limit: int = 1, ends: bool = False
    ) -> list[SessionView]:
        """Return what is kept of an owner's sessions, used last first, or of one: by the engine
        that had it last. `ends`: and have all engines end it. Raises EngineDeadError."""
        engines = [engine for engine in self._engines if engine.alive] or self._engines[:1]
        calls = (engine.sessions(owner, name, limit=limit, ends=ends) for engine in engines)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        _raise(answers)
        views = [view for each in answers if isinstance(each, list) for view in each]
        latest = dict[str, SessionView]()
        for view in sorted(views, key=lambda view: view.ttl, reverse=True):
            latest.setdefault(view.name, view)
        return list(latest.values())[:limit]

    def _able(self) -> list[int]:
        """Return the engines that may be given requests."""
        alive = [i for i, engine in enumerate(self._engines) if engine.alive]
        if self._together and not self.alive:
            return []
        if self._changing:
            return alive
        now = self.weight_version, self.paused
        return [
            i for i in alive if (self._engines[i].weight_version, self._engines[i].paused) == now
        ]

    def _lost(self) -> None:
        """Give up the requests of all engines that compute together with one that is lost."""
        for engine in self._engines if self._together else ():
            engine.give_up()

    def _place(self, request: Request, able: Sequence[int]) -> Placed:
        able = [i for i in able if i == request.engine] or able
        for i, engine in enumerate(self._engines):
            if engine.restarts != self._restarts[i]:
                self._restarts[i] = engine.restarts
                self._router.forget(i)
        known = [s for e in self._engines if (s := e.stats).prompt_seconds and s.row_seconds]
        costs = [stats.row_seconds / stats.prompt_seconds for stats in known]
        return self._router.place(request, able, sum(costs) / len(costs) if costs else 1.0)

    def _submit_to_all(
        self, request: Request, news: asyncio.Event, able: Sequence[int]
    ) -> TokenStream:
        stream = _Joined(request.id, news, left=len(able))
        for i in able:
            self._engines[i].submit(request, stream=stream)
        return stream


def _remove(folder: str, pid: int) -> None:
    """Remove the folder in which engines meet; in a child of fork, whose parent has it, do not."""
    if folder and os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _files(control: Control, folders: Sequence[str | None]) -> list[Control]:
    """Copy the file for each engine, which deletes its copy, into the engine's scratch folder if it
    is sandboxed. Hard links would not do: removing one changes the state of the others."""
    source, taken = Path(control.path), False
    each = []
    for i, folder in enumerate(folders):
        into = source.parent if folder is None else Path(folder)
        if into == source.parent and not taken:
            path, taken = source, True
        else:
            path = into / f"{source.stem}.{i}{source.suffix}"
            shutil.copyfile(source, path)
        each.append(evolve(control, path=str(path)))
    if not taken:
        source.unlink()
    return each


def _raise(ended: Sequence[object]) -> None:
    """Raise an error of engines: that they have ended only if all have."""
    errors = [each for each in ended if isinstance(each, BaseException)]
    others = [each for each in errors if not isinstance(each, EngineDeadError)]
    if others or len(errors) == len(ended):
        raise (others or errors)[0]
