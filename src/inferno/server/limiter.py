"""How much the engine is given at once, and how a stopping server lets it end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from attrs import define, field

from inferno.errors import QueueFullError, ShuttingDownError

if TYPE_CHECKING:
    from inferno.server.generation import Generation


@define(eq=False)
class Limiter:
    """Admits up to `limit` outputs at a time, and none once the server is stopping."""

    limit: int | None = None
    """Outputs running or waiting in the engine; None for any number."""
    in_flight: int = 0
    draining: bool = False
    running: set[Generation] = field(factory=set)

    def admit(self, generation: Generation) -> None:
        """Raises QueueFullError or ShuttingDownError. What was admitted must be released."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down", "Try again.")
        if (
            self.limit is not None
            and self.in_flight
            and self.in_flight + generation.num_outputs > self.limit
        ):
            raise QueueFullError(
                "too many requests are waiting",
                "Try again later, or start with more --max-waiting.",
            )
        self.in_flight += generation.num_outputs
        self.running.add(generation)

    def release(self, generation: Generation) -> None:
        """Releasing what was not admitted, or twice, is no error."""
        if generation in self.running:
            self.running.remove(generation)
            self.in_flight -= generation.num_outputs

    def drain(self, seconds: float) -> None:
        """Admit nothing more, and cut off after `seconds` what still runs."""
        self.draining = True
        asyncio.get_running_loop().call_later(seconds, self.expire)

    def expire(self) -> None:
        for generation in list(self.running):
            generation.abort("shutdown")
