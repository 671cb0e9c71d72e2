"""Tests of every queue policy: whatever its order, every request gets its own tokens, and none
waits for ever. `QueuedRun` is an engine without a model, on a clock of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest
from attrs import define, field

from inferno.builtin.lru import LRUPrefixCache
from inferno.catalog import Catalog
from inferno.contracts import QueueBuild
from inferno.core.kvcache import CacheGroups, FullGroup
from inferno.core.schedule.scheduler import Scheduler
from inferno.plan.step_cost import Work
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.fake_runner import FakeRunner, continuation, views_of
from inferno.testing.installed import Installed

_VOCAB, _BLOCK = 50, 4


@define(eq=False)
class QueuedRun:
    """Requests of several tenants in one scheduler. Steps take the time that `cost` says of their
    tokens, and `now` goes on by it."""

    build: QueueBuild
    cost: Callable[[int], float] = lambda tokens: 0.02 + 0.001 * tokens
    max_num_seqs: int = 8
    num_blocks: int = 1024
    max_num_batched_tokens: int = 256
    max_step_time: float = 0.2
    now: float = 0.0
    """Seconds."""
    tenants: dict[str, str] = field(factory=dict)
    """By request."""
    times: dict[str, list[float]] = field(factory=dict)
    """When each token of a request came."""
    arrived: dict[str, float] = field(factory=dict)
    scheduler: Scheduler = field(init=False)
    _runner: FakeRunner = field(init=False)
    _outputs: dict[str, list[int]] = field(factory=dict)
    _requests: dict[str, Request] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        groups = [FullGroup()]
        cache = LRUPrefixCache(self.num_blocks)
        self.scheduler = Scheduler(
            CacheGroups(self.num_blocks, _BLOCK, cache, groups),
            max_model_len=200,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_step_time=self.max_step_time,
            queue=self.build,
        )
        self._runner = FakeRunner(_BLOCK, _VOCAB, *views_of(groups))

    def add(
        self, id: str, prompt: Sequence[int], count: int, tenant: str = "", priority: int = 0
    ) -> None:
        """Ask for `count` tokens after a prompt."""
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        request = Request(
            id=id, token_ids=tuple(prompt), params=params, tenant=tenant, priority=priority
        )
        self._requests[id], self.tenants[id] = request, tenant
        self.arrived[id], self.times[id], self._outputs[id] = self.now, [], []
        self.scheduler.add(request)

    def abort(self, id: str) -> None:
        self.scheduler.abort(id)
        for table in (self._requests, self._outputs):
            table.pop(id, None)

    def step(self) -> None:
        """Run one step."""
        step = self.scheduler.plan()
        assert not step.is_empty or not self.scheduler.busy, "requests wait and nothing runs"
        work: Work = step.work[0]
        seconds = self.cost(work.tokens)
        self.now += seconds
        for output in self.scheduler.commit(step, self._runner.run(step), seconds):
            if output.token_id is not None:
                self._outputs[output.request_id].append(output.token_id)
                self.times[output.request_id].append(self.now)
        self.scheduler.check()

    def until(self, *ids: str) -> None:
        """Run until requests have ended."""
        for _ in range(100_000):
            if all(self.is_done(id) for id in ids):
                return
            self.step()
        raise AssertionError(f"{[id for id in ids if not self.is_done(id)]} never end")

    def is_done(self, id: str) -> bool:
        return len(self.times[id]) == self._requests[id].params.max_tokens

    def drain(self) -> None:
        """Run all requests that are left, and check every answer."""
        self.until(*self._requests)
        for id, request in self._requests.items():
            count = request.params.max_tokens or 0
            assert self._outputs[id] == continuation(request.token_ids, count, _VOCAB)

    def tokens(self) -> Counter[str]:
        """How many tokens each tenant has been given."""
        counts = Counter[str]()
        for id, times in self.times.items():
            counts[self.tenants[id]] += len(times)
        return counts


class QueuePolicyTests(Installed):
    """Subclass it, and name your policy."""

    policy: str

    @pytest.fixture
    def build(self, catalog: Catalog) -> QueueBuild:
        return catalog.queue_policy(self.policy).item.build

    @pytest.mark.parametrize("seed", range(6))
    def test_everyone_gets_their_own_tokens_in_the_end(self, build: QueueBuild, seed: int) -> None:
        """Also where rows and blocks are few, and requests are given up."""
        draw = Random(seed)
        run = QueuedRun(build, max_num_seqs=4, num_blocks=24, max_num_batched_tokens=24)
        for i in range(30):
            prompt = [draw.randrange(_VOCAB) for _ in range(draw.randint(1, 30))]
            tenant, priority = draw.choice(["", "a", "b"]), draw.choice([-1, 0, 0, 10])
            run.add(str(i), prompt, draw.randint(1, 20), tenant, priority)
            for _ in range(draw.randint(0, 6)):
                run.step()
            if not draw.randrange(6):
                run.abort(str(draw.randint(0, i)))
        run.drain()

    def test_one_tenant_is_served_by_priority_and_arrival(self, build: QueueBuild) -> None:
        run = QueuedRun(build, max_num_seqs=1)
        for i, priority in enumerate((1, 0, -1, 0)):
            run.add(str(i), [i, 1], 2, priority=priority)
        run.drain()
        assert sorted(run.times, key=lambda id: run.times[id][0]) == ["2", "1", "3", "0"]

    def test_a_queue_has_what_was_pushed_and_not_taken(self, build: QueueBuild) -> None:
        run = QueuedRun(build, max_num_seqs=2)
        for i in range(6):
            run.add(str(i), [1, 2, i], 9, tenant="ab"[i % 2])
        run.step()
        assert (run.scheduler.stats.num_running, run.scheduler.stats.num_waiting) == (2, 4)
        run.abort("5")
        run.abort("5")
        assert run.scheduler.stats.num_waiting == 3
        run.drain()
