"""What grammars cost, and how requests with slow ones take turns. Some grammars take longer with
every token of the output: one that is ambiguous, for example, as many steps as the square of its
length. Nobody else should wait for them.

Time is processor time of the calling thread: a busy machine makes no grammar slow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import thread_time
from typing import Any, TypeVar

from attrs import define, field

from inferno.contracts import Matcher

_Result = TypeVar("_Result")

SLOW = 0.001
"""Seconds for a token beyond which a grammar is slow. Most take a tenth of it."""
SHARE = 0.1
"""The share of the time that slow grammars take while other requests wait for their tokens."""
STEP_SECONDS = 0.05
"""How long slow grammars may take in one step; at least one of them takes part."""
TOKEN_SECONDS = 0.25
"""The longest for one token: nothing can interrupt a grammar, so its request ends after it."""
REQUEST_SECONDS = 5.0
FREE_SECONDS = 0.005
"""A request may take so long for each token, and 5 s beyond that."""


@define(eq=False)
class GrammarTime:
    """The time that one request's grammar takes."""

    clock: Callable[[], float] = thread_time
    is_slow: bool = False
    """Whether the last token, or what is known of the next, was slow."""
    is_watched: bool = False
    """Whether its masks are computed alone: a batch with them took long."""
    last: float = 0.0
    """Seconds for the last token."""
    tenant: str = ""
    """Whose request it is."""
    turn: int = 0
    """The last step of slow grammars that it took part in."""
    error: str = ""
    """Why its request ends; empty if it may go on."""
    _token: float = 0.0
    """Seconds for the next token, so far."""
    _over: float = 0.0
    """Seconds beyond those that are free."""
    _due: float = 0.0
    """Seconds that `Turns` does not know of yet."""

    def add(self, seconds: float) -> None:
        """Count time for the next token."""
        self._token += seconds
        self._due += seconds
        self._over = over = self._over + seconds
        self.is_slow = self.is_slow or self._token > SLOW
        if self._token > TOKEN_SECONDS:
            self.error = f"the grammar took {self._token:.2g} s of processor time for one token"
        elif over > REQUEST_SECONDS:
            self.error = f"the grammar took {over:.2g} s of processor time more than its tokens may"

    def next_token(self) -> None:
        """Begin the next token."""
        self.last, self._token = self._token, 0.0
        self.is_slow = self.last > SLOW
        self._over = max(0.0, self._over - FREE_SECONDS)
        if not self.is_slow:
            self._due = 0.0

    def take_due(self) -> float:
        due, self._due = self._due, 0.0
        return due


@define(eq=False)
class TimedMatcher:
    """A matcher whose time is counted. See contracts.Matcher."""

    inner: Matcher
    time: GrammarTime = field(factory=GrammarTime)

    @property
    def is_done(self) -> bool:
        return self.inner.is_done

    @property
    def error(self) -> str:
        return self.inner.error or self.time.error

    def accept(self, token_id: int) -> bool:
        """Also returns False if its time is up."""
        accepted = self._timed(self.inner.accept, token_id)
        self.time.next_token()
        return accepted and not self.time.error

    def count_valid(self, token_ids: Sequence[int]) -> int:
        return self._timed(self.inner.count_valid, token_ids)

    def forced(self) -> Sequence[int]:
        return self._timed(self.inner.forced)

    def _timed(self, call: Callable[..., _Result], *given: Any) -> _Result:
        clock = self.time.clock
        began = clock()
        result = call(*given)
        self.time.add(clock() - began)
        return result


@define(eq=False)
class Turns:
    """Decides which requests with slow grammars take part in a step."""

    _credit: float = 0.0
    """Seconds that they may take; negative while other requests come first."""
    _used: dict[str, float] = field(factory=dict)
    """Seconds of each tenant that has some, since it has."""
    _asked: float = 0.0
    _steps: int = 0

    def resting(self, slow: Mapping[str, GrammarTime], now: float, *, alone: bool) -> set[str]:
        """Return those of the `slow` requests, by id, that do not take part in the step that is
        planned at the time `now`. `alone`: there are no other requests, so nobody waits for
        them."""
        credit = self._credit + SHARE * (now - self._asked)
        self._asked = now
        self._credit = credit = min(0.0, credit) - self._count(slow.values())
        if not slow or (credit < 0 and not alone):
            return {*slow}
        self._steps, left, resting = self._steps + 1, STEP_SECONDS, set[str]()
        for place, id in enumerate(sorted(slow, key=lambda id: self._place(slow[id]))):
            left -= slow[id].last
            if place and left < 0:
                resting.add(id)
            else:
                slow[id].turn = self._steps
        return resting

    def _count(self, slow: Collection[GrammarTime]) -> float:
        """Return the seconds that are due, and count them for their tenants. New ones begin as the
        one that has used least."""
        tenants = {time.tenant for time in slow}
        least = min((self._used[each] for each in tenants & self._used.keys()), default=0.0)
        self._used = {each: self._used.get(each, least) for each in tenants}
        total = 0.0
        for time in slow:
            due = time.take_due()
            self._used[time.tenant] += due
            total += due
        return total

    def _place(self, time: GrammarTime) -> tuple[float, int]:
        """Return by what requests take turns: the tenant that has used least, then the one that
        waits longest."""
        return self._used[time.tenant], time.turn
