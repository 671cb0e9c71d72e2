"""Limits how many generations are in the engine at once, and how long new ones would wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from attrs import define, field

from inferno.errors import QueueFullError, ShuttingDownError

Ending = Literal["client", "shutdown", "unload", "timeout"]
"""Why a generation is aborted: its client is gone, the server stops, its model is unloaded, or it
took too long."""
PLACES = 8
"""A key may have at most so many times the places that are left: however much one sends, the next
has some, and the last places go to many."""
_DECAY = 0.95
"""What earlier outputs count for in the mean length when another ends."""
_LONGEST_RETRY = 600


class Admitted(Protocol):
    """What is admitted: a generation."""

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_prompt_tokens(self) -> int:
        """Of all its prompts."""

    @property
    def owner(self) -> str:
        """Of its key; empty without keys."""

    def abort(self, why: Ending) -> None: ...


class Costs(NamedTuple):
    """What the engine has learned of its steps (`plan.step_cost`)."""

    max_num_seqs: int
    prompt_seconds: float = 0.0
    """Of a token of a prompt; 0 while it is not known."""
    row_seconds: float = 0.0
    """Of a token of an output, beside those that run."""
    shares: bool = False
    """Whether its queue gives each key its share."""


@define
class Share:
    """What one owner has in the engine."""

    outputs: int = 0
    waiting: int = 0
    """Those that have no token yet."""
    prompt_tokens: float = 0.0
    """Of the prompts of those."""


@define(eq=False)
class Limiter:
    """Admits up to `limit` outputs at a time, and none once the server is shutting down."""

    limit: int | None = None
    """Maximum of outputs running or waiting in the engine; None for no limit."""
    max_wait: float | None = None
    """Seconds that a request may be expected to wait for its first token; None for no limit."""
    costs: Callable[[], Costs] = lambda: Costs(0)
    in_flight: int = 0
    draining: bool = False
    running: dict[Admitted, int] = field(factory=dict)
    """How many outputs of each have no token yet."""
    shares: dict[str, Share] = field(factory=dict)
    """By owner."""
    num_expired: int = 0
    """How many were aborted because the server shuts down."""
    mean_output: float = 0.0
    """Tokens of an output."""

    def admit(self, generation: Admitted) -> None:
        """Admit a generation, to be released later. Raises QueueFullError or ShuttingDownError."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down", "Try again.")
        count, owner = generation.num_outputs, generation.owner
        if self.limit is not None and self.in_flight:
            self._check_places(count, owner, self.limit - self.in_flight)
        if self.max_wait is not None and (wait := self.wait(owner)) > self.max_wait:
            raise _full(
                f"a request would wait {wait:.3g} s for its first token, which is over "
                f"{self.max_wait:g} s",
                "Send it later, or start the server with a larger --max-wait.",
                wait - self.max_wait,
            )
        self.in_flight += count
        self.running[generation] = count
        share = self.shares.setdefault(owner, Share())
        share.outputs += count
        share.waiting += count
        share.prompt_tokens += generation.num_prompt_tokens

    def begun(self, generation: Admitted) -> None:
        """Take note of an output's first token."""
        if self.running.get(generation):
            self._stop_waiting(generation, 1)

    def ended(self, tokens: int) -> None:
        """Take note of an output's length."""
        self.mean_output += (1 - _DECAY if self.mean_output else 1) * (tokens - self.mean_output)

    def release(self, generation: Admitted) -> None:
        """Release a generation. Does nothing if it is not admitted or already released."""
        if generation not in self.running:
            return
        self._stop_waiting(generation, self.running[generation])
        del self.running[generation]
        self.in_flight -= generation.num_outputs
        share = self.shares[generation.owner]
        share.outputs -= generation.num_outputs
        if not share.outputs:
            del self.shares[generation.owner]

    def waiting(self, owner: str) -> int:
        """Return how many outputs of an owner wait for their first token."""
        return self.shares[owner].waiting if owner in self.shares else 0

    def wait(self, owner: str) -> float:
        """Return the seconds that a request of this owner would wait: for the prompts and answers
        of those before it, as many of each key's as of its own where the queue shares."""
        costs, mine = self.costs(), self.shares.get(owner, Share())
        others = [share for each, share in self.shares.items() if each != owner]
        total = mine.waiting + sum(share.waiting for share in others)
        ahead = total
        if costs.shares:
            ahead = mine.waiting + sum(min(each.waiting, mine.waiting + 1) for each in others)
        prompts = sum(share.prompt_tokens for share in self.shares.values())
        seconds = costs.prompt_seconds * prompts * (ahead / total if total else 0.0)
        # A queue that shares takes a row from a key that has two more than this one.
        most = max((share.outputs - share.waiting for share in others), default=0)
        taken = costs.shares and most >= mine.outputs - mine.waiting + 2
        if self.in_flight >= costs.max_num_seqs and not taken:
            seconds += costs.row_seconds * self.mean_output * (ahead + 1)
        return seconds

    def drain(self, seconds: float) -> None:
        """Admit nothing more, and abort what still runs after `seconds`."""
        self.draining = True
        asyncio.get_running_loop().call_later(seconds, self.expire)

    def expire(self, why: Ending = "shutdown") -> None:
        """Abort what runs."""
        self.num_expired += len(self.running) if why == "shutdown" else 0
        for generation in list(self.running):
            generation.abort(why)

    def _check_places(self, count: int, owner: str, left: int) -> None:
        """Raise QueueFullError unless there is room for an owner's outputs."""
        seconds = count * self.mean_output * self.costs().row_seconds
        if count > left:
            raise _full(
                "too many requests are waiting",
                "Try again later, or start the server with a larger --max-waiting.",
                seconds,
            )
        if owner and self.shares.get(owner, Share()).outputs + count > PLACES * left:
            raise _full(
                "too many requests of this API key are waiting: the last places are for others",
                "Wait for some of them, or start the server with a larger --max-waiting.",
                seconds,
            )

    def _stop_waiting(self, generation: Admitted, count: int) -> None:
        self.running[generation] -= count
        share = self.shares[generation.owner]
        share.waiting -= count
        tokens = generation.num_prompt_tokens * count / generation.num_outputs
        share.prompt_tokens = max(0.0, share.prompt_tokens - tokens)


def _full(cause: str, remedy: str, seconds: float) -> QueueFullError:
    error = QueueFullError(cause, remedy)
    error.headers = {"Retry-After": str(min(_LONGEST_RETRY, max(1, math.ceil(seconds))))}
    return error
