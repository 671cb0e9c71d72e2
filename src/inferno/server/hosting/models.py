"""The models behind one app, by the names that clients use. Loads them on demand, and unloads them
when they are idle or when others need their memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

from inferno.errors import (
    InfernoError,
    ModelNotFoundError,
    ModelUnavailableError,
    OutOfMemoryError,
    RequestError,
    ShuttingDownError,
)
from inferno.host import format_bytes
from inferno.server.hosting.hosted_model import HostedModel, LoadState, load_error
from inferno.server.hosting.served_model import ServedModel
from inferno.server.observe.record import current

if TYPE_CHECKING:
    from inferno.contracts import RequestField
    from inferno.llm import AsyncLLM

log = logging.getLogger("inferno.server")

DRAIN_SECONDS = 30.0
"""Time that a model's requests may take to end before it is unloaded under them."""
_LOOK_SECONDS = 1.0
"""Time between looks for models that have been idle for too long."""


class Models:
    """Finds the model of a request, and loads it first if need be. (Not an attrs class: Litestar
    would inspect it.)

    Each model has its own engine process. Models are loaded one after another, since each load
    depends on the memory that the others leave.
    """

    def __init__(
        self,
        hosted_models: Sequence[HostedModel],
        serve: Callable[[HostedModel, AsyncLLM], ServedModel],
        *,
        budgets: Mapping[str, int] | None = None,
        max_loaded: int | None = None,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread,
        ping_seconds: float = 10.0,
    ) -> None:
        """`serve` makes the served model of a started one. `budgets` are the bytes that models may
        use together on each device, by torch's name for it. `max_loaded` limits how many are loaded
        at once. `in_thread` runs what would block the event loop. Streams that
        wait for a load get a comment every `ping_seconds`."""
        self.hosted = tuple(hosted_models)
        """The first one answers requests that name none."""
        self._serve, self._max_loaded = serve, max_loaded
        self._in_thread, self._ping_seconds = in_thread, ping_seconds
        self._budgets = dict(budgets or {})
        # Clients of other servers name a model by the path or id that the server was started with.
        self._by_ref = {
            hosted.spec.ref: hosted for hosted in reversed(self.hosted) if hosted.spec.ref
        }
        self._by_name = {name: hosted for hosted in self.hosted for name in hosted.spec.names}
        self._loading = asyncio.Lock()
        self.draining = False
        """Whether the server is shutting down."""
        self.starting = any(hosted.spec.preload for hosted in self.hosted)
        """Whether models are still being loaded that are to be loaded at the start."""

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """The models that are loaded."""
        return tuple(hosted.served for hosted in self.hosted if hosted.served is not None)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self._by_name, *(name for hosted in self.hosted for name in hosted.adapters))

    @property
    def request_fields(self) -> Mapping[str, RequestField]:
        """The fields of bodies that plugins of the loaded models understand."""
        return {n: field for model in self.served for n, field in model.llm.request_fields.items()}

    @property
    def busy(self) -> bool:
        """Whether a model generates for a request."""
        return self.num_running > 0

    @property
    def num_running(self) -> int:
        """Requests that models generate for."""
        return sum(len(hosted.limiter.running) for hosted in self.hosted)

    async def find(self, name: str | None, *, stream: bool | None = False) -> ServedModel:
        """Return the model of that name, ready to serve, and hold it until the current HTTP request
        has ended. Loads it first if need be; requests for it meanwhile wait for the same load. With
        `stream`, the answer is server-sent events with OpenAI's errors: comments keep its
        connection alive meanwhile.

        Raises ModelNotFoundError, PermissionDeniedError, ModelUnavailableError, ShuttingDownError.
        """
        hosted, record = self.get(name), current()
        if record is not None:
            record.model = hosted.name
            if record.key is not None:
                record.key.check_model(hosted.spec.names)
        if record is None:
            (await self._hold(hosted))()
            return _loaded(hosted, name)
        alive = stream and hosted.state is not LoadState.LOADED
        async with record.pinging(self._ping_seconds) if alive else contextlib.nullcontext():
            record.at_end.append(await self._hold(hosted))
        return _loaded(hosted, name)

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[ServedModel]:
        """Hold a model for work that is not an HTTP request, or outlives one. Raises as `find`."""
        hosted = self.get(name)
        release = await self._hold(hosted)
        try:
            yield _loaded(hosted, name)
        finally:
            release()

    def named(self, name: str | None) -> ServedModel:
        """Return the model of that name if it is loaded. Raises ModelNotFoundError,
        ModelUnavailableError."""
        hosted = self.get(name)
        if hosted.served is None:
            raise ModelUnavailableError(
                f"the model {hosted.name!r} is not loaded",
                f"Load it: inferno load {hosted.name}, or send it a request.",
            )
        return hosted.served

    def get(self, name: str | None) -> HostedModel:
        """Return the model of that name, in any state. Raises ModelNotFoundError."""
        if name is None:
            return self.hosted[0]
        beside = {adapter: each for each in self.hosted for adapter in each.adapters}
        if (hosted := (beside | self._by_ref | self._by_name).get(name)) is None:
            raise ModelNotFoundError(
                f"the model {name[:200]!r} does not exist", f"Use one of: {', '.join(self.names)}"
            )
        return hosted

    async def load(self, hosted: HostedModel) -> None:
        """Load a model without a request for it, at once even if its last load failed. Raises what
        the load raises."""
        hosted.retry_at = 0.0
        (await self._hold(hosted))()

    async def unload(self, hosted: HostedModel, seconds: float = DRAIN_SECONDS) -> None:
        """Unload a model. Requests that use it may take so many seconds to end, then they are
        aborted; new ones wait, and load it again."""
        while hosted.state in (LoadState.LOADING, LoadState.UNLOADING):
            await _wait_for(hosted)
        if hosted.spec.make is None:
            raise RequestError(
                f"the model {hosted.name!r} cannot be unloaded: it is the server's only one",
                "Stop the server, or serve several models.",
            )
        if hosted.state is LoadState.LOADED:
            self._start(hosted, LoadState.UNLOADING, self._unload(hosted, seconds))
            await _wait_for(hosted)

    async def unload_idle(self) -> None:
        """Unload every model that has been idle for longer than it may."""
        for hosted in self.hosted:
            limit = hosted.spec.idle_seconds
            if (
                limit is not None
                and hosted.is_idle
                and not hosted.spec.pin
                and hosted.clock() - hosted.last_used >= limit
            ):
                log.info("%s: idle for %.0f s", hosted.name, limit)
                await self.unload(hosted)

    def drain(self, seconds: float) -> None:
        """Admit nothing more, and abort what still runs after `seconds`."""
        self.draining = True
        for hosted in self.hosted:
            hosted.limiter.drain(seconds)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load what is to be loaded at the start, in the background, and unload idle models;
        finally unload all."""
        tasks = [asyncio.create_task(self._preload()), asyncio.create_task(self._watch())]
        try:
            yield
        finally:
            self.draining = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for hosted in self.hosted:
                if hosted.state is LoadState.LOADING and hosted.task is not None:
                    hosted.task.cancel()
            made_here = (hosted for hosted in self.hosted if hosted.spec.make is not None)
            await asyncio.gather(*(self.unload(hosted, 0) for hosted in made_here))

    # --- one model's transitions ------------------------------------------------------------------

    async def _hold(self, hosted: HostedModel) -> Callable[[], None]:
        """Hold the model once it is loaded."""
        with hosted.wait():
            while hosted.state is not LoadState.LOADED:
                if self.draining:
                    raise ShuttingDownError("the server is shutting down", "Try again.")
                if hosted.state in (LoadState.UNLOADED, LoadState.FAILED):
                    hosted.check_back_off()
                    self._start(hosted, LoadState.LOADING, self._load(hosted))
                if error := await _wait_for(hosted):
                    raise error
            return hosted.hold()

    def _start(
        self, hosted: HostedModel, state: LoadState, work: Coroutine[Any, Any, None]
    ) -> None:
        hosted.state = state
        # Not in the context of the request that asked first: the engine's watcher outlives it.
        hosted.task = asyncio.create_task(work, name=f"{state} {hosted.name}", context=Context())

    async def _load(self, hosted: HostedModel) -> None:
        start = time.monotonic()
        try:
            async with self._loading:
                await self._load_now(hosted)
        except InfernoError as error:
            if isinstance(error, ModelUnavailableError):  # other models use the memory for now
                log.warning("%s: not loaded: %s", hosted.name, error.cause)
                hosted.forget()
                hosted.state = LoadState.UNLOADED
                raise
            log.error("%s: not loaded: %s", hosted.name, error)
            hosted.fail(error)
            raise load_error(hosted.name, error, hosted.retry_at - hosted.clock()) from error
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                log.exception("%s: not loaded", hosted.name)
            hosted.fail(InfernoError("loading failed unexpectedly", "See the server's log."))
            raise
        hosted.state, hosted.error, hosted.failures = LoadState.LOADED, None, 0
        hosted.last_used = hosted.clock()
        log.info(
            "%s: loaded in %.1f s, %s on %s",
            hosted.name,
            time.monotonic() - start,
            format_bytes(hosted.nbytes),
            hosted.device,
        )

    async def _load_now(self, hosted: HostedModel) -> None:
        llm = await self._plan(hosted)
        plan = llm.plan
        device, nbytes = plan.device.torch_name, plan.nbytes
        await self._make_room(hosted, device, nbytes)
        hosted.device, hosted.nbytes = device, nbytes
        try:
            await llm.start()
            served = self._serve(hosted, llm)
            await self._in_thread(served.warm_up)
        except BaseException:
            await llm.close()
            raise
        hosted.served = served

    async def _plan(self, hosted: HostedModel) -> AsyncLLM:
        """Plan the model. A plan for a GPU counts what is free now: unload idle models on GPUs
        while that is too little."""
        make = hosted.spec.make
        assert make is not None, "a model that is always loaded is not loaded again"
        while True:
            try:
                llm: AsyncLLM = await self._in_thread(make)
                return llm
            except OutOfMemoryError:
                devices = {s.device for s in self.hosted if s.holds_memory} - {"cpu"}
                idle = [victim for d in devices if (victim := self._idlest(d)) is not None]
                victim = min(idle, key=lambda hosted: hosted.last_used, default=None)
                if victim is None:
                    raise
                await self.unload(victim)

    async def _make_room(self, hosted: HostedModel, device: str, nbytes: int) -> None:
        """Unload the least recently used idle models until this one fits; none if it cannot fit.
        Raises ModelUnavailableError."""
        budget, most = self._budgets.get(device), self._max_loaded
        while True:
            loaded = [s for s in self.hosted if s is not hosted and s.holds_memory]
            here = [s for s in loaded if s.device == device]
            too_many = most is not None and len(loaded) >= most
            if not too_many and (budget is None or _total(here) + nbytes <= budget):
                return
            staying = [s for s in here if s.spec.pin or not s.is_idle]
            hopeless = budget is not None and _total(staying) + nbytes > budget
            victim = None if hopeless else self._idlest(None if too_many else device)
            if victim is None:
                raise self._no_room(hosted, device, nbytes, too_many=too_many)
            log.info("%s: unloaded to make room for %s", victim.name, hosted.name)
            await self.unload(victim)

    def _idlest(self, device: str | None = None) -> HostedModel | None:
        """The model that was not used for the longest time, among those that may be unloaded, on
        one device or any."""
        idle = [
            hosted
            for hosted in self.hosted
            if hosted.is_idle and not hosted.spec.pin and device in (None, hosted.device)
        ]
        return min(idle, key=lambda hosted: hosted.last_used, default=None)

    def _no_room(
        self, hosted: HostedModel, device: str, nbytes: int, *, too_many: bool
    ) -> ModelUnavailableError:
        loaded = [s for s in self.hosted if s is not hosted and s.holds_memory]
        uses = ", ".join(
            f"{s.name} {format_bytes(s.nbytes)} ({'pinned' if s.spec.pin else 'in use'})"
            for s in loaded
        )
        if too_many and nbytes <= self._budgets.get(device, nbytes):
            cause = f"{len(loaded)} models are loaded, the most allowed, and none is idle: {uses}"
        else:
            budget = format_bytes(self._budgets.get(device, 0))
            cause = (
                f"the model {hosted.name!r} needs {format_bytes(nbytes)} on {device}, and models "
                f"may use {budget} together; loaded: {uses or 'none'}"
            )
        hopeless = nbytes > self._budgets.get(device, nbytes)
        remedy = (
            "Give the model less `memory`, or the server more."
            if hopeless
            else "Unload one (inferno unload NAME), do not pin it, or try again once it is idle."
        )
        error = ModelUnavailableError(cause, remedy)
        if hopeless:
            error.headers = {"x-should-retry": "false"}
        return error

    async def _unload(self, hosted: HostedModel, seconds: float) -> None:
        served = _loaded(hosted)
        try:
            if hosted.leases:
                hosted.released = asyncio.Event()
                try:
                    await asyncio.wait_for(hosted.released.wait(), seconds)
                except TimeoutError:
                    hosted.limiter.expire("unload")
                    with contextlib.suppress(TimeoutError):  # whose clients may not read any more
                        await asyncio.wait_for(hosted.released.wait(), 5)
            await served.llm.close()
        finally:
            hosted.released = None
            hosted.forget()
            hosted.state = LoadState.UNLOADED
        log.info("%s: unloaded", hosted.name)

    # --- in the background ------------------------------------------------------------------------

    async def _preload(self) -> None:
        for hosted in self.hosted:
            if hosted.spec.preload:
                with contextlib.suppress(Exception):  # it is logged, and shown in /v1/models
                    await self.load(hosted)
        self.starting = False

    async def _watch(self) -> None:
        while any(hosted.spec.idle_seconds is not None for hosted in self.hosted):
            await asyncio.sleep(_LOOK_SECONDS)
            await self.unload_idle()


async def _wait_for(hosted: HostedModel) -> BaseException | None:
    """Wait until the model is loaded or unloaded; return the error with which that ended. The work
    goes on if the caller is cancelled."""
    task = hosted.task  # the model may have another one by the time this one has ended
    assert task is not None, "every transition has a task"
    await asyncio.wait([task])
    if task.cancelled():
        return ShuttingDownError("the server is shutting down", "Try again.")
    return task.exception()


def _total(hosted_models: Sequence[HostedModel]) -> int:
    return sum(hosted.nbytes for hosted in hosted_models)


def _loaded(hosted: HostedModel, name: str | None = None) -> ServedModel:
    served = hosted.served
    assert served is not None, "a loaded model is served"
    return served.under(name) if name is not None and name in hosted.adapters else served
