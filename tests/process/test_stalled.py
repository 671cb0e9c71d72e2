"""A step that takes far longer than it should, seen from both ends of the heartbeat's pipe."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, cast

import pytest
from attrs import define

from inferno.constraints import Constraints
from inferno.core.engine import Engine, scheduler_of
from inferno.core.kvcache import CacheGroups
from inferno.core.types import Step
from inferno.errors import EngineDeadError
from inferno.plan import Options, Plan, resolve
from inferno.plan.step_cost import Work
from inferno.process import protocol
from inferno.process.client import EngineClient
from inferno.process.heartbeat import LATE, LATE_AFTER, LATE_FACTOR, MOVED, STILL, Heart, is_late
from inferno.process.watchdog import LOST_AFTER, Watchdog
from inferno.request.requests import EngineOutput, EngineStats, FinishReason, Request
from inferno.stores import NoStore
from inferno.testing import FakeRunner

pytest.importorskip("inferno_demo")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve("demo", Options(device="cpu", max_num_seqs=4, max_num_batched_tokens=64))


@pytest.mark.parametrize(
    ("seconds", "expected", "late"),
    [
        (60.0, 60.0, False),  # a chunk of a prompt on a slow CPU
        (60.0, None, False),  # the first step of its kind
        (LATE_AFTER - 1, 0.001, False),
        (LATE_AFTER, 0.001, True),
        (LATE_FACTOR * 5 - 1, 5.0, False),
        (LATE_FACTOR * 5, 5.0, True),
    ],
)
def test_a_step_is_late_far_beyond_its_usual_time_and_never_at_once(
    seconds: float, expected: float | None, late: bool
) -> None:
    assert is_late(seconds, expected) is late


def test_beats_say_whether_the_loop_moved_and_whether_its_step_is_late() -> None:
    read, write = os.pipe()
    heart = Heart(write, 3600)  # its thread sends one beat, the others are asked for
    assert os.read(read, 1) == MOVED
    heart.expected = lambda: 200.0
    assert heart.beat() == STILL
    heart.expected = lambda: 0.1
    assert heart.beat() == LATE
    heart.moved()
    assert heart.beat() == MOVED
    os.close(read)


def watched(beats: list[bytes], timeout: float) -> tuple[Watchdog, list[bool], bool]:
    """Send beats; return the watchdog, whether it found the engine stalled after each, and whether
    it killed it."""
    stalled = list[bool]()

    async def run() -> tuple[Watchdog, bool]:
        pipe, pipe_of_process = os.pipe()
        watchdog = Watchdog(pipe, timeout=timeout, beat=0.01)
        killed = asyncio.Event()
        watching = asyncio.create_task(watchdog.watch(os.getpid(), killed.set))
        for beat in beats:
            if killed.is_set():
                break
            os.write(pipe_of_process, beat)
            await asyncio.sleep(0.02)
            stalled.append(watchdog.stalled)
            assert not (watchdog.stalled and watchdog.responsive)
        watching.cancel()
        os.close(pipe_of_process)
        watchdog.close()
        return watchdog, killed.is_set()

    watchdog, killed = asyncio.run(run())
    return watchdog, stalled, killed


def test_a_stalled_engine_is_told_in_the_log_and_may_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "inferno.process")
    _, stalled, killed = watched([MOVED, STILL, LATE, LATE, MOVED, STILL], timeout=0)
    assert stalled == [False, False, True, True, False, False] and not killed
    first, second = (record.getMessage() for record in caplog.records)
    assert "is stalled: one step has taken" in first and "goes on" in second


def test_a_silent_engine_is_told_in_the_log_before_it_is_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "inferno.process")
    watched([MOVED, *[b""] * 14, MOVED, MOVED], timeout=0)
    first, second = (record.getMessage() for record in caplog.records)
    assert "has given no sign of life for" in first and "takes no requests" in first
    assert "goes on" in second


def test_a_stalled_engine_is_killed_after_the_timeout_and_a_slow_one_is_not() -> None:
    watchdog, _, killed = watched([LATE] * 100, timeout=0.1)
    assert killed and "20 times what it should take" in (watchdog.verdict or "")
    _, _, killed = watched([STILL] * 20, timeout=0.1)
    assert not killed


def test_requests_of_an_engine_that_does_not_answer_are_given_up_once(plan: Plan) -> None:
    """Late, or silent; and again if it answered in between."""
    lost = list[int]()

    async def run() -> None:
        pipe, pipe_of_process = os.pipe()
        watchdog = Watchdog(pipe, timeout=0, beat=0.01)
        watchdog.on_lost = lambda: lost.append(watchdog._silent)
        watching = asyncio.create_task(watchdog.watch(os.getpid(), lambda: None))
        for beats in ([MOVED] * 3, [LATE] * 30, [MOVED] * 3, [b""] * 60, [MOVED] * 3):
            for beat in beats:
                os.write(pipe_of_process, beat)
                await asyncio.sleep(0.01)
        watching.cancel()
        os.close(pipe_of_process)
        watchdog.close()

    asyncio.run(run())
    assert len(lost) == 2 and lost[1] >= LOST_AFTER
    assert LOST_AFTER < 10, "beats of a second, and a hang is told within 10"


def test_requests_of_a_late_step_are_given_up_when_a_beat_says_so() -> None:
    lost = list[None]()

    async def run() -> None:
        pipe, pipe_of_process = os.pipe()
        watchdog = Watchdog(pipe, timeout=0, beat=3600)
        watchdog.on_lost, watchdog._still = lambda: lost.append(None), int(LATE_AFTER)
        os.write(pipe_of_process, LATE)
        while not watchdog.stalled:
            await asyncio.sleep(0)
        os.close(pipe_of_process)
        watchdog.close()

    asyncio.run(run())
    assert lost == [None]


def test_requests_are_kept_where_the_server_itself_was_stopped() -> None:
    """What its engine sent meanwhile is read with the beats, before them or after."""
    lost = list[None]()

    async def run() -> None:
        pipe, pipe_of_process = os.pipe()
        watchdog = Watchdog(pipe, timeout=0, beat=0.01)
        watchdog.on_lost = lambda: lost.append(None)
        watching = asyncio.create_task(watchdog.watch(os.getpid(), lambda: None))
        for _ in range(3):
            watchdog.heard()
            os.write(pipe_of_process, MOVED * 2 * LOST_AFTER)
            await asyncio.sleep(0.02)
            assert watchdog.responsive
        watching.cancel()
        os.close(pipe_of_process)
        watchdog.close()

    asyncio.run(run())
    assert not lost


def test_a_client_tells_the_requests_that_are_given_up_and_the_engine_drops_them(
    plan: Plan,
) -> None:
    async def run() -> None:
        client, sent = EngineClient(plan), list[bytes]()
        silent = Silent(plan, alive=True, stalled=False)
        silent.send = lambda kind, body: sent.append(kind)  # type: ignore[method-assign]
        client._engine = cast(Any, silent)
        stream = client.submit(Request(id="a", token_ids=(1,)))
        client.give_up()
        with pytest.raises(EngineDeadError, match="does not respond"):
            stream.take()
        assert sent == [protocol.ADD, protocol.ABORT]
        client._hand_out(EngineOutput("a", 7))  # from before the engine reads the abort
        again = client.submit(Request(id="a", token_ids=(1,)))
        client._hand_out(EngineOutput("a", 7))
        assert not again.take(), "that is still the old one's"
        # Every running request was ended at that moment, the old one among them.
        client._hand_out(EngineOutput("a", None, FinishReason.ABORT))
        client._take(protocol.ABORTED, protocol.encode("a"))
        client._hand_out(EngineOutput("a", 8))
        assert [each.token_id for each in again.take()] == [8]

    asyncio.run(run())


def test_the_engine_knows_what_its_step_should_take(plan: Plan) -> None:
    seconds = list[float | None]()

    class Asking(FakeRunner):
        def launch(self, step: Step, cut: Any = None) -> Any:
            seconds.append(engine.expected())
            return super().launch(step, cut)

    scheduler = scheduler_of(plan, CacheGroups(512, plan.block_size, None))
    engine = Engine(plan, scheduler, Asking(plan.block_size), clock=lambda: 0.0)
    scheduler.budget.record(Work(1, 1), 3.0, alone=True)
    engine.submit(Request(id="a", token_ids=(1, 2, 3)))
    for _ in range(3):
        engine.step()
    first = pytest.approx(3 * 3.0, rel=0.1)  # three steps of one token
    assert seconds == [first, pytest.approx(3.0, rel=0.1), pytest.approx(3.0, rel=0.1)]
    assert engine.expected() == 0, "between steps nothing takes long"


class Fetching(NoStore):
    """A store that has not brought its blocks yet."""

    waits_for = 0
    naps = 0

    def sleep(self) -> None:
        self.naps += 1


def test_a_step_naps_for_a_store_unless_the_caller_waits_for_more(plan: Plan) -> None:
    """An engine that other engines wait for must not."""
    store = Fetching()
    scheduler = scheduler_of(plan, CacheGroups(512, plan.block_size, None))
    engine = Engine(plan, scheduler, FakeRunner(plan.block_size), store=store)
    assert engine.step() == [] and store.naps == 1
    assert engine.step(naps=False) == [] and store.naps == 1


@define(slots=False)
class Silent:
    """A supervisor of an engine that says nothing more."""

    plan: Plan
    alive: bool = False
    running: bool = True
    stalled: bool = True

    def send(self, kind: bytes, body: bytes) -> None:
        pass


def test_requests_are_counted_without_the_engine(plan: Plan) -> None:
    async def run() -> None:
        client = EngineClient(plan)
        silent = Silent(plan, alive=True, stalled=False)
        client._engine = cast(Any, silent)
        for name in "abc":
            client.submit(Request(id=name, token_ids=(1,)))
        client._hand_out(EngineOutput("b", 7))
        assert client.stats == EngineStats(), "as long as it answers, it says"
        silent.alive, silent.stalled = False, True
        assert (client.stats.num_running, client.stats.num_waiting) == (1, 2)
        with pytest.raises(EngineDeadError, match="is stalled: one step takes far too long"):
            client.submit(Request(id="d", token_ids=(1,)))

    asyncio.run(run())


def test_threads_for_grammars_are_there_before_the_first_step() -> None:
    constraints = Constraints(64)
    constraints.start_threads()
    pools = constraints._compiler, constraints._masker
    assert all(len(pool._threads) == 1 for pool in pools)
