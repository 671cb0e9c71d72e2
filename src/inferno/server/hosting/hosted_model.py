"""One model of a server with several: how to make it, whether it is loaded, and what uses it."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from attrs import define, field, frozen

from inferno.errors import InfernoError, ModelNotFoundError, ModelUnavailableError
from inferno.server.access.limiter import Limiter
from inferno.server.hosting.served_model import ServedModel
from inferno.server.observe.links import link_health

if TYPE_CHECKING:
    import asyncio

    from inferno.llm import AsyncLLM
    from inferno.plan import AdapterUse
    from inferno.process.health import EngineState

BACK_OFF, MAX_BACK_OFF = 5.0, 300.0
"""Seconds before a model whose load failed is loaded again: doubled at each failure, to a limit."""


class LoadState(enum.StrEnum):
    """What a model is doing. Requests wait while it is loading or unloading."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"
    """Its last load failed; a request loads it again once the back-off is over."""


@frozen(kw_only=True)
class ModelSpec:
    """A model that a server may load."""

    names: tuple[str, ...]
    """What clients call it; the first is its name, the others are aliases."""
    make: Callable[[], AsyncLLM] | None
    """Plans it, which may read files and the hub: called in a thread, once for each load. None: it
    is always loaded."""
    ref: str = ""
    """For people."""
    pin: bool = False
    """Keep it once it is loaded, even if other models need its memory."""
    idle_seconds: float | None = None
    """Seconds without a request after which it is unloaded; None: never."""
    preload: bool = False
    """Load it when the server starts."""

    @property
    def name(self) -> str:
        return self.names[0]


@define(eq=False)
class HostedModel:
    """A model's state. `Models` changes it, requests hold it."""

    spec: ModelSpec
    clock: Callable[[], float] = time.monotonic
    created: int = field(factory=lambda: int(time.time()))
    """When the server learned of it, in Unix time."""
    state: LoadState = LoadState.UNLOADED
    served: ServedModel | None = None
    """While it is loaded or unloading."""
    limiter: Limiter = field(factory=Limiter)
    """Of its requests; the same for every load."""
    nbytes: int = 0
    """Bytes planned for it, from the plan on until it is unloaded."""
    device: str = ""
    leases: int = 0
    """Requests that use the loaded model. It is not unloaded under them."""
    waiting: int = 0
    """Requests that wait until it is loaded."""
    last_used: float = 0.0
    error: InfernoError | None = None
    """Why the last load failed."""
    failures: int = 0
    """Failed loads in a row."""
    retry_at: float = 0.0
    task: asyncio.Task[None] | None = None
    """The running task that loads or unloads it."""
    released: asyncio.Event | None = None
    """Set once the last lease is released, while something waits for that."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded, and no request uses it or waits for it."""
        return self.state is LoadState.LOADED and not self.leases and not self.waiting

    @property
    def adapters(self) -> Mapping[str, AdapterUse]:
        """The adapters that requests may name, while it is loaded."""
        return {} if self.served is None else self.served.preprocessor.adapters.uses

    @property
    def holds_memory(self) -> bool:
        """Whether its engine process exists."""
        return self.served is not None

    @property
    def status(self) -> str:
        """The state for people: a loaded model's engine may be restarting, stalled or asleep."""
        if self.state is LoadState.LOADED and self.served is not None:
            if not self.served.llm.alive:
                return "stalled" if self.served.llm.stalled else "restarting"
            if self.served.llm.is_sleeping:
                return "asleep"
        return str(self.state)

    @property
    def engines(self) -> dict[str, EngineState]:
        """How each of its engines is, by number; empty if there is one, or none."""
        views = () if self.served is None else self.served.llm.engines
        return {str(i): view.state for i, view in enumerate(views)}

    @property
    def prefill(self) -> dict[str, str]:
        """Whether each instance that computes prompts for the model is connected, by number; empty:
        there are none."""
        llm = self.served.llm if self.served is not None else None
        return {} if llm is None else link_health(llm.plan, llm.stats)

    @property
    def failed_starts(self) -> int:
        """How many starts of its engine, or loads of the model, have failed one after another."""
        return self.failures if self.served is None else self.served.llm.failed_starts

    @classmethod
    def loaded(cls, served: ServedModel, limiter: Limiter) -> Self:
        """A model that the caller loads and closes."""
        plan = served.llm.plan
        spec = ModelSpec(names=served.names, make=None, ref=plan.ref, pin=True)
        hosted = cls(spec, state=LoadState.LOADED, served=served, limiter=limiter)
        hosted.nbytes = plan.nbytes
        hosted.device = plan.device.torch_name
        return hosted

    def hold(self) -> Callable[[], None]:
        """Keep the loaded model until the returned function is called."""
        assert self.state is LoadState.LOADED, "only loaded models are held"
        self.leases += 1

        def release() -> None:
            self.leases -= 1
            self.last_used = self.clock()
            if not self.leases and self.released is not None:
                self.released.set()

        return release

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count a request that waits for the model: it is not unloaded before that request has used
        it."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def check_back_off(self) -> None:
        """Raise the last load's error if it is too early for another try."""
        left = self.retry_at - self.clock()
        if self.state is LoadState.FAILED and self.error is not None and left > 0:
            raise load_error(self.name, self.error, left)

    def fail(self, error: InfernoError) -> None:
        """Set the state after a failed load."""
        self.state, self.error = LoadState.FAILED, error
        self.retry_at = self.clock() + min(BACK_OFF * 2**self.failures, MAX_BACK_OFF)
        self.failures += 1
        self.forget()

    def forget(self) -> None:
        """Forget what was loaded."""
        self.served, self.nbytes, self.device = None, 0, ""


def load_error(name: str, error: InfernoError, retry_seconds: float) -> InfernoError:
    """The error for a request to a model that does not load: a 404 if there is no such model, else
    a 503."""
    kind = ModelNotFoundError if isinstance(error, ModelNotFoundError) else ModelUnavailableError
    refusal = kind(f"the model {name!r} does not load: {error.cause}", error.remedy)
    seconds = str(max(1, round(retry_seconds)))
    refusal.headers = {"Retry-After": seconds, "x-should-retry": "false"}
    return refusal
