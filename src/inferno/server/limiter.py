"""Limits the requests in the engine, and drains them at shutdown."""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

from attrs import define, field

from inferno.errors import QueueFullError, ShuttingDownError


class Admissible(Protocol):
    """A request in the engine, as the limiter sees it: `generation.Generation`."""

    @property
    def num_outputs(self) -> int: ...

    def abort(self, why: Literal["client", "shutdown"]) -> None: ...


@define(eq=False)
class Limiter:
    """Admits up to `limit` outputs at a time, and none once the server is shutting down."""

    limit: int | None = None
    """Maximum of outputs running or waiting in the engine; None for no limit."""
    in_flight: int = 0
    draining: bool = False
    running: set[Admissible] = field(factory=set)

    def admit(self, generation: Admissible) -> None:
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

    def release(self, generation: Admissible) -> None:
        """Release a generation. Does nothing if it is not admitted or already released."""
        if generation in self.running:
            self.running.remove(generation)
            self.in_flight -= generation.num_outputs

    def drain(self, seconds: float) -> None:
        """Admit nothing more, and abort what still runs after `seconds`."""
        self.draining = True
        asyncio.get_running_loop().call_later(seconds, self.expire)

    def expire(self) -> None:
        for generation in list(self.running):
            generation.abort("shutdown")
