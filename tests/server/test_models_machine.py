"""Any order of requests, loads, unloads and idle times: nothing is lost, and the budget holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.server.model_fakes import FakeModel, models_of

from inferno.errors import CheckpointError, InfernoError, ModelUnavailableError
from inferno.server.hosting.hosted_model import LoadState
from inferno.server.hosting.models import Models

NAMES = st.sampled_from("abcd")
BUDGET = 10
IDLE = 100.0


async def at_once(work: Callable[[], Any]) -> Any:
    """Run what Models runs in a thread: here its end must not depend on time."""
    await asyncio.sleep(0)
    return work()


@define(eq=False)
class Use:
    """A request: waits for its model, then holds it until `end` is set."""

    name: str
    end: asyncio.Event = field(factory=asyncio.Event)
    llm: Any = None
    error: BaseException | None = None
    task: asyncio.Task[None] | None = None

    async def run(self, models: Models) -> None:
        try:
            async with models.lease(self.name) as model:
                self.llm = model.llm
                await self.end.wait()
                assert not self.llm.is_closed, "unloaded under a request"
        except InfernoError as error:
            self.error = error


class Machine(RuleBasedStateMachine):
    @initialize(sizes=st.lists(st.integers(1, 12), min_size=4, max_size=4), pins=st.sets(NAMES))
    def begin(self, sizes: list[int], pins: set[str]) -> None:
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.fakes = {
            name: FakeModel(name, nbytes=size, pin=name in pins, idle_seconds=IDLE)
            for name, size in zip("abcd", sizes, strict=True)
        }
        self.models = models_of(
            *self.fakes.values(),
            clock=lambda: self.now,
            budgets={"cpu": BUDGET},
            in_thread=at_once,
        )
        self.uses: list[Use] = []
        self.others: list[asyncio.Task[Any]] = []

    def turn(self, times: int) -> None:
        async def work() -> None:
            for _ in range(times):
                await asyncio.sleep(0)

        self.loop.run_until_complete(work())

    @rule(name=NAMES)
    def request(self, name: str) -> None:
        use = Use(name)
        use.task = self.loop.create_task(use.run(self.models))
        self.uses.append(use)

    @rule(number=st.integers(0, 50))
    def end_a_request(self, number: int) -> None:
        if self.uses:
            self.uses[number % len(self.uses)].end.set()

    @rule(number=st.integers(0, 50))
    def a_client_leaves(self, number: int) -> None:
        if self.uses:
            task = self.uses[number % len(self.uses)].task
            assert task is not None
            task.cancel()

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        work = self.models.unload(self.models.get(name), 1e9)
        self.others.append(self.loop.create_task(work))

    @rule(name=NAMES)
    def load(self, name: str) -> None:
        async def work() -> None:
            with contextlib.suppress(InfernoError):
                await self.models.load(self.models.get(name))

        self.others.append(self.loop.create_task(work()))

    @rule(name=NAMES, fails=st.booleans())
    def loading_fails_or_works_again(self, name: str, fails: bool) -> None:
        self.fakes[name].error = CheckpointError("torn", "Repair it.") if fails else None

    @rule(seconds=st.sampled_from([1.0, IDLE]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        self.others.append(self.loop.create_task(self.models.unload_idle()))

    @rule(times=st.integers(1, 30))
    def go_on(self, times: int) -> None:
        self.turn(times)

    @invariant()
    def no_model_is_over_the_budget_and_none_runs_twice(self) -> None:
        running = {name: len(fake.running) for name, fake in self.fakes.items()}
        assert all(count <= 1 for count in running.values())
        assert sum(self.fakes[name].nbytes for name, count in running.items() if count) <= BUDGET
        for hosted in self.models.hosted:
            assert hosted.leases == 0 or hosted.state in (LoadState.LOADED, LoadState.UNLOADING)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for use in self.uses:
            use.end.set()

        async def settle() -> None:
            tasks = [use.task for use in self.uses if use.task is not None] + self.others
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

        self.loop.run_until_complete(settle())
        for use in self.uses:  # each was answered, or told why not
            assert use.task is not None
            if not use.task.cancelled():
                assert use.task.exception() is None
                assert (use.llm is None) == (use.error is not None)
                assert use.llm is None or use.llm.model_id == use.name
                assert use.error is None or isinstance(use.error, ModelUnavailableError)
        for hosted in self.models.hosted:
            assert hosted.leases == hosted.waiting == 0
            assert hosted.state in (LoadState.LOADED, LoadState.UNLOADED, LoadState.FAILED)
            assert len(self.fakes[hosted.name].running) == (hosted.state is LoadState.LOADED)
        self.loop.close()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
