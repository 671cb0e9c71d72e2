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
from inferno.server.model import ServedModel
from inferno.server.record import current
from inferno.server.slot import Slot, State, load_error

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
        slots: Sequence[Slot],
        serve: Callable[[Slot, AsyncLLM], ServedModel],
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
        self.slots = tuple(slots)
        """The first one answers requests that name none."""
        self._serve, self._max_loaded = serve, max_loaded
        self._in_thread, self._ping_seconds = in_thread, ping_seconds
        self._budgets = dict(budgets or {})
        # Clients of other servers name a model by the path or id that the server was started with.
        self._by_ref = {slot.spec.ref: slot for slot in reversed(self.slots) if slot.spec.ref}
        self._by_name = {name: slot for slot in self.slots for name in slot.spec.names}
        self._loading = asyncio.Lock()
        self.draining = False
        """Whether the server is shutting down."""
        self.starting = any(slot.spec.preload for slot in self.slots)
        """Whether models are still being loaded that are to be loaded at the start."""

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """The models that are loaded."""
        return tuple(slot.served for slot in self.slots if slot.served is not None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

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
        return sum(len(slot.limiter.running) for slot in self.slots)

    async def find(self, name: str | None, *, stream: bool | None = False) -> ServedModel:
        """Return the model of that name, ready to serve, and hold it until the current HTTP request
        has ended. Loads it first if need be; requests for it meanwhile wait for the same load. With
        `stream`, the answer is server-sent events with OpenAI's errors: comments keep its
        connection alive meanwhile.

        Raises ModelNotFoundError, PermissionDeniedError, ModelUnavailableError, ShuttingDownError.
        """
        slot, record = self.slot(name), current()
        if record is not None:
            record.model = slot.name
            if record.key is not None:
                record.key.check_model(slot.spec.names)
        if record is None:
            (await self._hold(slot))()
            return _loaded(slot)
        alive = stream and slot.state is not State.LOADED
        async with record.pinging(self._ping_seconds) if alive else contextlib.nullcontext():
            record.at_end.append(await self._hold(slot))
        return _loaded(slot)

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[ServedModel]:
        """Hold a model for work that is not an HTTP request, or outlives one. Raises as `find`."""
        slot = self.slot(name)
        release = await self._hold(slot)
        try:
            yield _loaded(slot)
        finally:
            release()

    def named(self, name: str | None) -> ServedModel:
        """Return the model of that name if it is loaded. Raises ModelNotFoundError,
        ModelUnavailableError."""
        slot = self.slot(name)
        if slot.served is None:
            raise ModelUnavailableError(
                f"the model {slot.name!r} is not loaded",
                f"Load it: inferno load {slot.name}, or send it a request.",
            )
        return slot.served

    def slot(self, name: str | None) -> Slot:
        """Return the model of that name, in any state. Raises ModelNotFoundError."""
        if name is None:
            return self.slots[0]
        if (found := self._by_name.get(name) or self._by_ref.get(name)) is None:
            raise ModelNotFoundError(
                f"the model {name[:200]!r} does not exist", f"Use one of: {', '.join(self.names)}"
            )
        return found

    async def load(self, slot: Slot) -> None:
        """Load a model without a request for it, at once even if its last load failed. Raises what
        the load raises."""
        slot.retry_at = 0.0
        (await self._hold(slot))()

    async def unload(self, slot: Slot, seconds: float = DRAIN_SECONDS) -> None:
        """Unload a model. Requests that use it may take so many seconds to end, then they are
        aborted; new ones wait, and load it again."""
        while slot.state in (State.LOADING, State.UNLOADING):
            await _wait_for(slot)
        if slot.spec.make is None:
            raise RequestError(
                f"the model {slot.name!r} cannot be unloaded: it is the server's only one",
                "Stop the server, or serve several models.",
            )
        if slot.state is State.LOADED:
            self._start(slot, State.UNLOADING, self._unload(slot, seconds))
            await _wait_for(slot)

    async def unload_idle(self) -> None:
        """Unload every model that has been idle for longer than it may."""
        for slot in self.slots:
            limit = slot.spec.idle_seconds
            if (
                limit is not None
                and slot.is_idle
                and not slot.spec.pin
                and slot.clock() - slot.last_used >= limit
            ):
                log.info("%s: idle for %.0f s", slot.name, limit)
                await self.unload(slot)

    def drain(self, seconds: float) -> None:
        """Admit nothing more, and abort what still runs after `seconds`."""
        self.draining = True
        for slot in self.slots:
            slot.limiter.drain(seconds)

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
            for slot in self.slots:
                if slot.state is State.LOADING and slot.task is not None:
                    slot.task.cancel()
            own = (slot for slot in self.slots if slot.spec.make is not None)
            await asyncio.gather(*(self.unload(slot, 0) for slot in own))

    # --- one model's transitions ------------------------------------------------------------------

    async def _hold(self, slot: Slot) -> Callable[[], None]:
        """Hold the model once it is loaded."""
        with slot.wait():
            while slot.state is not State.LOADED:
                if self.draining:
                    raise ShuttingDownError("the server is shutting down", "Try again.")
                if slot.state in (State.UNLOADED, State.FAILED):
                    slot.check_back_off()
                    self._start(slot, State.LOADING, self._load(slot))
                if error := await _wait_for(slot):
                    raise error
            return slot.hold()

    def _start(self, slot: Slot, state: State, work: Coroutine[Any, Any, None]) -> None:
        slot.state = state
        # Not in the context of the request that asked first: the engine's watcher outlives it.
        slot.task = asyncio.create_task(work, name=f"{state} {slot.name}", context=Context())

    async def _load(self, slot: Slot) -> None:
        start = time.monotonic()
        try:
            async with self._loading:
                await self._load_now(slot)
        except InfernoError as error:
            if isinstance(error, ModelUnavailableError):  # other models use the memory for now
                log.warning("%s: not loaded: %s", slot.name, error.cause)
                slot.forget()
                slot.state = State.UNLOADED
                raise
            log.error("%s: not loaded: %s", slot.name, error)
            slot.fail(error)
            raise load_error(slot.name, error, slot.retry_at - slot.clock()) from error
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                log.exception("%s: not loaded", slot.name)
            slot.fail(InfernoError("loading failed unexpectedly", "See the server's log."))
            raise
        slot.state, slot.error, slot.failures = State.LOADED, None, 0
        slot.last_used = slot.clock()
        log.info(
            "%s: loaded in %.1f s, %s on %s",
            slot.name,
            time.monotonic() - start,
            format_bytes(slot.nbytes),
            slot.device,
        )

    async def _load_now(self, slot: Slot) -> None:
        llm = await self._plan(slot)
        plan = llm.plan
        device, nbytes = plan.device.torch_name, sum(item.nbytes for item in plan.memory)
        await self._make_room(slot, device, nbytes)
        slot.device, slot.nbytes = device, nbytes
        try:
            await llm.start()
            served = self._serve(slot, llm)
            await self._in_thread(served.warm_up)
        except BaseException:
            await llm.close()
            raise
        slot.served = served

    async def _plan(self, slot: Slot) -> AsyncLLM:
        """Plan the model. A plan for a GPU counts what is free now: unload idle models on GPUs
        while that is too little."""
        make = slot.spec.make
        assert make is not None, "a model that is always loaded is not loaded again"
        while True:
            try:
                llm: AsyncLLM = await self._in_thread(make)
                return llm
            except OutOfMemoryError:
                devices = {s.device for s in self.slots if s.holds_memory} - {"cpu"}
                found = [victim for d in devices if (victim := self._idlest(d)) is not None]
                victim = min(found, key=lambda slot: slot.last_used, default=None)
                if victim is None:
                    raise
                await self.unload(victim)

    async def _make_room(self, slot: Slot, device: str, nbytes: int) -> None:
        """Unload the least recently used idle models until this one fits; none if it cannot fit.
        Raises ModelUnavailableError."""
        budget, most = self._budgets.get(device), self._max_loaded
        while True:
            loaded = [s for s in self.slots if s is not slot and s.holds_memory]
            here = [s for s in loaded if s.device == device]
            too_many = most is not None and len(loaded) >= most
            if not too_many and (budget is None or _total(here) + nbytes <= budget):
                return
            staying = [s for s in here if s.spec.pin or not s.is_idle]
            hopeless = budget is not None and _total(staying) + nbytes > budget
            victim = None if hopeless else self._idlest(None if too_many else device)
            if victim is None:
                raise self._no_room(slot, device, nbytes, too_many=too_many)
            log.info("%s: unloaded to make room for %s", victim.name, slot.name)
            await self.unload(victim)

    def _idlest(self, device: str | None = None) -> Slot | None:
        """The model that was not used for the longest time, among those that may be unloaded, on
        one device or any."""
        found = [
            slot
            for slot in self.slots
            if slot.is_idle and not slot.spec.pin and device in (None, slot.device)
        ]
        return min(found, key=lambda slot: slot.last_used, default=None)

    def _no_room(
        self, slot: Slot, device: str, nbytes: int, *, too_many: bool
    ) -> ModelUnavailableError:
        held = [s for s in self.slots if s is not slot and s.holds_memory]
        uses = ", ".join(
            f"{s.name} {format_bytes(s.nbytes)} ({'pinned' if s.spec.pin else 'in use'})"
            for s in held
        )
        if too_many and nbytes <= self._budgets.get(device, nbytes):
            cause = f"{len(held)} models are loaded, the most allowed, and none is idle: {uses}"
        else:
            budget = format_bytes(self._budgets.get(device, 0))
            cause = (
                f"the model {slot.name!r} needs {format_bytes(nbytes)} on {device}, and models may "
                f"use {budget} together; loaded: {uses or 'none'}"
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

    async def _unload(self, slot: Slot, seconds: float) -> None:
        served = _loaded(slot)
        try:
            if slot.leases:
                slot.released = asyncio.Event()
                try:
                    await asyncio.wait_for(slot.released.wait(), seconds)
                except TimeoutError:
                    slot.limiter.expire("unload")
                    with contextlib.suppress(TimeoutError):  # whose clients may not read any more
                        await asyncio.wait_for(slot.released.wait(), 5)
            await served.llm.close()
        finally:
            slot.released = None
            slot.forget()
            slot.state = State.UNLOADED
        log.info("%s: unloaded", slot.name)

    # --- in the background ------------------------------------------------------------------------

    async def _preload(self) -> None:
        for slot in self.slots:
            if slot.spec.preload:
                with contextlib.suppress(Exception):  # it is logged, and shown in /v1/models
                    await self.load(slot)
        self.starting = False

    async def _watch(self) -> None:
        while any(slot.spec.idle_seconds is not None for slot in self.slots):
            await asyncio.sleep(_LOOK_SECONDS)
            await self.unload_idle()


async def _wait_for(slot: Slot) -> BaseException | None:
    """Wait until the model is loaded or unloaded; return the error with which that ended. The work
    goes on if the caller is cancelled."""
    task = slot.task  # the slot may have another one by the time this one has ended
    assert task is not None, "every transition has a task"
    await asyncio.wait([task])
    if task.cancelled():
        return ShuttingDownError("the server is shutting down", "Try again.")
    return task.exception()


def _total(slots: Sequence[Slot]) -> int:
    return sum(slot.nbytes for slot in slots)


def _loaded(slot: Slot) -> ServedModel:
    assert slot.served is not None, "a loaded model is served"
    return slot.served
