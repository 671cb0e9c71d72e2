"""Signs of life between machines, on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inferno.process.ranks.messages import BEAT, ENDED
from inferno.process.ranks.pulse import LOST, SECONDS, converse
from inferno.process.ranks.wire import Message


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A connection to a machine that says what is due at a time."""

    def __init__(self, clock: Clock, says: Callable[[float], Message | None]) -> None:
        self._clock, self._says, self.sent = clock, says, list[tuple[float, bytes]]()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        self.sent.append((self._clock.now, kind))

    def receive(self, seconds: float) -> Message | None:
        if (message := self._says(self._clock.now)) is not None:
            return message
        self._clock.now += seconds
        return None


def beating(
    clock: Clock, until: float, every: float = SECONDS
) -> Callable[[float], Message | None]:
    due = [clock.now]

    def says(now: float) -> Message | None:
        if now < due[0] or now > until:
            return None
        due[0] += every
        return BEAT, b""

    return says


def test_a_machine_that_falls_silent_is_given_up_within_ten_seconds() -> None:
    clock = Clock()
    line = Line(clock, beating(clock, until=130.0))
    assert not converse(line, LOST, lambda: True, lambda kind, body: None, clock=clock)
    assert 130 + LOST * SECONDS - 1 < clock.now < 130 + 10
    assert len(line.sent) == pytest.approx((clock.now - 100) / SECONDS, abs=2), "it is told, too"


def test_one_that_is_slow_but_there_is_not() -> None:
    clock = Clock()
    line = Line(clock, beating(clock, until=1e9, every=6.0))
    assert converse(line, LOST, lambda: clock.now < 400, lambda kind, body: None, clock=clock)


def test_what_came_while_this_process_had_no_core_counts() -> None:
    """It was away for a minute; the other's beats wait to be read."""
    clock = Clock()
    inner = beating(clock, until=1e9)
    away = [False]

    def says(now: float) -> Message | None:
        if now > 110 and not away[0]:
            away[0] = True
            clock.now += 60
        return inner(clock.now)

    line = Line(clock, says)
    assert converse(line, LOST, lambda: clock.now < 300, lambda kind, body: None, clock=clock)


def test_other_messages_are_taken_and_what_is_to_be_told_comes_before_a_beat() -> None:
    clock, taken, told = Clock(), list[Message](), list[float]()
    given = [(ENDED, b"1"), (ENDED, b"2")]
    line = Line(clock, lambda now: given.pop(0) if given else None)
    assert converse(
        line,
        LOST,
        lambda: len(told) < 3,
        lambda kind, body: taken.append((kind, body)),
        lambda: told.append(clock.now),
        clock,
    )
    assert taken == [(ENDED, b"1"), (ENDED, b"2")]
    assert [when for when, _ in line.sent] == told
