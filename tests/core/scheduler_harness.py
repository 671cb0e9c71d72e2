"""A scheduler with a runner that has no model: what the tests of both drive."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field
from hypothesis import strategies as st

from inferno.builtin.lru import LRUPrefixCache
from inferno.core.kvcache import (
    CacheGroup,
    CacheGroups,
    FullGroup,
    Snapshots,
    StateGroup,
    WindowGroup,
    extend_keys,
)
from inferno.core.schedule.scheduler import Scheduler
from inferno.core.types import Step
from inferno.plan.step_cost import Work
from inferno.request.requests import EngineOutput, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import FakeRunner
from inferno.testing.fake_runner import continuation, views_of

VOCAB = 50
BLOCK = 4


@define(eq=False)
class Harness:
    """A scheduler, its cache groups and a fake runner that knows what each slot must hold."""

    num_blocks: int = 64
    block_size: int = BLOCK
    max_model_len: int = 100
    max_num_seqs: int = 8
    budget: int = 32
    seconds: float = 0.0
    """`max_step_time`; steps then take the time that `cost` says."""
    cost: Callable[[Work], float] = lambda work: float(work.tokens)
    prefix: bool = True
    windows: Mapping[int, int] = field(factory=dict)
    """Window -> blocks of its group."""
    num_snapshots: int | None = None
    """None: no layer has a recurrent state."""
    interval: int = 1024
    cache_groups: Sequence[CacheGroup] = ()
    """Instead of those of `windows` and `num_snapshots`."""
    groups: CacheGroups = field(init=False)
    scheduler: Scheduler = field(init=False)
    runner: FakeRunner = field(init=False)
    outputs: dict[str, list[EngineOutput]] = field(factory=dict, init=False)
    steps: list[Step] = field(factory=list, init=False)
    order: list[str] = field(factory=list, init=False)
    """Request ids in the order of their first tokens."""

    def __attrs_post_init__(self) -> None:
        groups = self.cache_groups or self._groups()
        self.groups = CacheGroups(
            self.num_blocks,
            self.block_size,
            LRUPrefixCache(self.num_blocks) if self.prefix else None,
            groups,
        )
        self.scheduler = Scheduler(
            self.groups,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_step_time=self.seconds,
        )
        self.runner = FakeRunner(self.block_size, VOCAB, *views_of(groups))

    def _groups(self) -> list[CacheGroup]:
        count, groups = self.num_snapshots, list[CacheGroup]([FullGroup()])
        for index, (window, num_places) in enumerate(self.windows.items(), 1):
            groups.append(WindowGroup(index, num_places, self.block_size, window))
        if count is not None:
            snapshots = Snapshots(self.max_num_seqs, count if self.prefix else 0)
            groups.append(StateGroup(len(groups), snapshots, self.block_size, self.interval))
        return groups

    @property
    def window_groups(self) -> list[WindowGroup]:
        return [group for group in self.groups.groups if isinstance(group, WindowGroup)]

    @property
    def snapshots(self) -> Snapshots:
        [group] = [group for group in self.groups.groups if isinstance(group, StateGroup)]
        return group.snapshots

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int | None = 1,
        *,
        priority: int = 0,
        salt: str = "",
        eos: Sequence[int] = (),
        prompt_logprobs: int | None = None,
        stop: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> None:
        params = SamplingParams(
            max_tokens=max_tokens,
            prompt_logprobs=prompt_logprobs,
            stop_token_ids=stop,
            min_tokens=min_tokens,
        )
        self.outputs[request_id] = []
        self.scheduler.add(
            Request(
                id=request_id,
                token_ids=tuple(prompt),
                params=params,
                priority=priority,
                cache_salt=salt,
                eos_token_ids=tuple(eos),
            )
        )

    def step(self) -> Step:
        step = self.scheduler.plan()
        assert step.num_tokens <= self.budget, "the budget is exceeded"
        assert {update.row for update in step.block_updates} <= self.scheduler._running.keys()
        work, _ = step.work
        for output in self.scheduler.commit(step, self.runner.run(step), self.cost(work)):
            if not self.outputs[output.request_id]:
                self.order.append(output.request_id)
            self.outputs[output.request_id].append(output)
        self.scheduler.check()
        self.steps.append(step)
        return step

    def run(self) -> None:
        while self.scheduler.busy:
            step = self.step()
            assert step.slices or step.moves, "requests wait and nothing runs"
        groups = self.groups.groups
        assert self.groups.available() == min(self.num_blocks, *[g.available() for g in groups])
        assert self.groups.usage == 0, "a block is not given back"

    def ask(self, request_id: str, prompt: Sequence[int], max_tokens: int = 1) -> int:
        """Run one request to its end, alone; how many of its tokens were found."""
        self.add(request_id, prompt, max_tokens)
        self.run()
        assert self.output(request_id) == continuation(prompt, max_tokens, VOCAB)
        return self.outputs[request_id][0].num_cached

    def output(self, request_id: str) -> list[int]:
        outputs = self.outputs[request_id]
        return [o.token_id for o in outputs if o.token_id is not None]

    def last(self, request_id: str) -> EngineOutput:
        return self.outputs[request_id][-1]


def prompt_of(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(length)]


def keys_of(prompt: Sequence[int]) -> list[bytes]:
    """The keys of a prompt's full blocks."""
    keys: list[bytes] = []
    extend_keys(keys, prompt, BLOCK)
    return keys


def run_anything(harness: Harness, data: st.DataObject) -> None:
    """Draw requests with common beginnings, aborts and resets between steps, and run them all: each
    request that was not aborted must get its own tokens. Contexts have at most 58 tokens."""
    draw = data.draw
    beginnings = [prompt_of(seed, 30) for seed in range(2)]
    wanted: dict[str, tuple[list[int], int]] = {}
    for i in range(draw(st.integers(1, 14))):
        prompt = [
            *beginnings[draw(st.integers(0, 1))][: draw(st.integers(1, 30))],
            *prompt_of(i, draw(st.integers(0, 8))),
        ]
        wanted[str(i)] = prompt, draw(st.integers(1, 20))
        harness.add(str(i), *wanted[str(i)], priority=draw(st.integers(0, 1)))
        for _ in range(draw(st.integers(0, 12))):
            harness.step()
        if draw(st.integers(0, 9)) == 0:
            harness.scheduler.abort(str(i))
            harness.scheduler.check()
            wanted.pop(str(i))
        if draw(st.integers(0, 9)) == 0:
            harness.groups.reset()
    harness.run()
    for name, (prompt, count) in wanted.items():
        assert harness.output(name) == continuation(prompt, count, VOCAB)
