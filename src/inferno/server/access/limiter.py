"""Limits how many generations are in the engine at once."""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

from attrs import define, field

from inferno.errors import QueueFullError, ShuttingDownError

Ending = Literal["client", "shutdown", "unload", "timeout"]
"""Why a generation is aborted: its client is gone, the server stops, its model is unloaded, or it
took too long."""


class Admitted(Protocol):
    """What is admitted: a generation."""

    @property
    def num_outputs(self) -> int: ...

    def abort(self, why: Ending) -> None: ...


@define(eq=False)
class Limiter:
    """Admits up to `limit` outputs at a time, and none once the server is shutting down."""

    limit: int | None = None
    """Maximum of outputs running or waiting in the engine; None for no limit."""
    in_flight: int = 0
    draining: bool = False
    running: set[Admitted] = field(factory=set)
    num_expired: int = 0
    """How many were aborted because the server shuts down."""

    def admit(self, generation: Admitted) -> None:
        """Admit a generation, to be released later. Raises QueueFullError or ShuttingDownError."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down", "Try again.")
        if (
            self.limit is not None
            and self.in_flight
            and self.in_flight + generation.num_outputs > self.limit
        ):
            raise QueueFullError(
                "too many requests are waiting",
                "Try again later, or start the server with a larger --max-waiting.",
            )
        self.in_flight += generation.num_outputs
        self.running.add(generation)

    def release(self, generation: Admitted) -> None:
        """Release a generation. Does nothing if it is not admitted or already released."""
        if generation in self.running:
            self.running.remove(generation)
            self.in_flight -= generation.num_outputs

    def drain(self, seconds: float) -> None:
        """Admit nothing more, and abort what still runs after `seconds`."""
        self.draining = True
        asyncio.get_running_loop().call_later(seconds, self.expire)

    def expire(self, why: Ending = "shutdown") -> None:
        """Abort what runs."""
        self.num_expired += len(self.running) if why == "shutdown" else 0
        for generation in list(self.running):
            generation.abort(why)
