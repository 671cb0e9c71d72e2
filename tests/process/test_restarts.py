"""Starts that fail: they go on, and somebody may hurry them. No process runs."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from inferno.errors import EngineDeadError, OutOfMemoryError
from inferno.plan import Options, Plan, resolve
from inferno.process import protocol
from inferno.process.supervisor import LONGEST_PAUSE, Supervisor

pytest.importorskip("inferno_demo")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve("demo", Options(device="cpu"))


class Failing(Supervisor):
    """Its first starts fail. Pauses last until somebody is in a hurry, or take no time."""

    def __init__(self, plan: Plan, failures: int, *, waits: bool = False) -> None:
        super().__init__(plan, lambda kind, body: None, lambda error: None)
        self.failures, self.waits = failures, waits
        self.pauses: list[float] = []
        self._watcher = cast("asyncio.Task[None]", asyncio.Future[None]())

    async def _spawn(self) -> None:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise OutOfMemoryError("no room for the weights", "Free some.")
        self.running, self._failure = True, None

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.waits:
            await self._hurry.wait()


def test_starts_that_fail_go_on_with_pauses_up_to_a_minute(plan: Plan) -> None:
    async def run() -> None:
        engine = Failing(plan, failures=12)
        assert await engine._respawn() and engine.running
        assert engine.pauses == [1, 2, 4, 8, 16, 32, *[LONGEST_PAUSE] * 6]

    asyncio.run(run())


def test_requests_learn_why_the_engine_does_not_start(plan: Plan) -> None:
    async def run() -> None:
        engine = Failing(plan, failures=100, waits=True)
        starting = asyncio.create_task(engine._respawn())
        while not engine.pauses:
            await asyncio.sleep(0)
        with pytest.raises(EngineDeadError, match="does not start: no room for the weights"):
            engine.send(b"add", b"")
        engine._closing = True
        engine._hurry.set()
        assert not await starting

    asyncio.run(run())


def test_a_start_can_be_hurried_and_says_how_it_went(plan: Plan) -> None:
    async def run() -> None:
        engine = Failing(plan, failures=3, waits=True)
        starting = asyncio.create_task(engine._respawn())
        while not engine.pauses:
            await asyncio.sleep(0)
        for _ in range(2):  # two who ask at once wait for the same start
            both = await asyncio.gather(engine.revive(), engine.revive(), return_exceptions=True)
            assert all(isinstance(error, EngineDeadError) for error in both)
        assert (len(engine.pauses), engine.running) == (3, False)
        await engine.revive()
        assert await starting and engine.running
        await engine.revive()
        assert len(engine.pauses) == 3, "one that runs is left alone"

    asyncio.run(run())


def test_nothing_is_started_for_one_that_is_closed(plan: Plan) -> None:
    async def run() -> None:
        engine = Failing(plan, failures=0)
        engine._closing = True
        assert not await engine._respawn() and not engine.running
        with pytest.raises(EngineDeadError, match="closed"):
            await engine.revive()

    asyncio.run(run())


def test_requests_learn_of_a_fatal_error_before_the_process_has_ended(plan: Plan) -> None:
    """Its end takes a second: it gives back its memory."""
    told: list[EngineDeadError] = []
    engine = Supervisor(plan, lambda kind, body: None, told.append)
    engine.running = True
    failure = protocol.Failure.of(EngineDeadError("rank 1 was killed", "Load it again."))
    engine._take(protocol.FAILED, protocol.encode(failure))
    assert [error.cause for error in told] == ["rank 1 was killed"] and not engine.running
    with pytest.raises(EngineDeadError, match="is being restarted|was not started"):
        engine.send(b"add", b"")
