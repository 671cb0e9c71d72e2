"""Random histories of requests, with steps in flight and drafts: every request gets its only right
continuation, and nothing is lost.

INFERNO_HISTORIES sets how many of them run for each case.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Sequence

import pytest
from attrs import define, field

from inferno.builtin.lru import LRUPrefixCache
from inferno.core.kvcache import (
    CacheGroup,
    CacheGroups,
    FullGroup,
    Snapshots,
    StateGroup,
    WindowGroup,
)
from inferno.core.schedule.scheduler import Scheduler
from inferno.core.types import Sampled, Step
from inferno.plan.draft_cost import DraftCost
from inferno.request.requests import Pooling, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import FakeRunner
from inferno.testing.fake_runner import continuation, views_of

VOCAB, BLOCK, MAX_MODEL_LEN = 40, 4, 44
HISTORIES = int(os.environ.get("INFERNO_HISTORIES", "40"))


@define(eq=False)
class History:
    """One random history: ten requests, of which some share prompts, some are aborted."""

    draw: random.Random
    lag: int
    drafts: bool
    expected: dict[str, list[int]] = field(factory=dict)
    found: dict[str, list[int]] = field(factory=dict)
    embedded: dict[str, int] = field(factory=dict)
    aborted: set[str] = field(factory=set)
    accepted: int = 0
    scheduler: Scheduler = field(init=False)
    runner: FakeRunner = field(init=False)
    groups: CacheGroups = field(init=False)

    def __attrs_post_init__(self) -> None:
        draw = self.draw
        num_blocks = draw.choice([13, 20, 40, 80])
        windows = draw.choice([{}, {}, {6: 40}]) if num_blocks >= 40 else {}
        states = draw.random() < 0.3
        rows = draw.choice([1, 3, 8])
        prefix = LRUPrefixCache(num_blocks) if draw.random() < 0.7 else None
        groups: list[CacheGroup] = [FullGroup()]
        for index, (window, count) in enumerate(windows.items(), 1):
            groups.append(WindowGroup(index, count, BLOCK, window))
        if states:
            count = draw.choice([0, 2, 5])
            drafted = draw.choice([6, 12]) if self.drafts else 0
            snapshots = Snapshots(rows, count if prefix is not None else 0, drafted)
            groups.append(StateGroup(len(groups), snapshots, BLOCK, interval=8))
        self.groups = CacheGroups(num_blocks, BLOCK, prefix, groups)
        self.scheduler = Scheduler(
            self.groups,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=rows,
            max_num_batched_tokens=16 if windows else draw.choice([8, 32]),
            drafts=DraftCost(draw.choice([1, 3, 6]), verify=0.02) if self.drafts else None,
        )
        self.runner = FakeRunner(BLOCK, VOCAB, *views_of(groups), propose=self._propose)

    def _propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        """Right drafts, then perhaps wrong ones, or fewer than wanted."""
        drafts = continuation(token_ids, self.draw.randrange(count + 1), VOCAB)
        if self.draw.random() < 0.4:
            drafts += [self.draw.randrange(VOCAB) for _ in range(count)]
        return drafts[:count]

    def add(self, name: str) -> None:
        draw = self.draw
        prompt = [7] * draw.choice([3, 9, 10])
        if draw.random() < 0.5:
            prompt = [draw.randrange(VOCAB) for _ in range(draw.randrange(1, 25))]
        most = draw.randrange(1, 16)
        eos = (draw.randrange(VOCAB),) if draw.random() < 0.6 else ()
        pooling: Pooling | None = draw.choice([None, None, None, None, "last", "mean"])
        right = continuation(prompt, min(most, MAX_MODEL_LEN - len(prompt)), VOCAB)
        if eos and eos[0] in right:
            right = right[: right.index(eos[0]) + 1]
        self.expected[name], self.found[name] = ([] if pooling else right), []
        if pooling:
            self.embedded[name] = len(prompt) if pooling == "mean" else 0
        self.scheduler.add(
            Request(
                id=name,
                token_ids=tuple(prompt),
                params=SamplingParams(max_tokens=most),
                eos_token_ids=eos,
                pooling=pooling,
                priority=draw.randrange(2),
            )
        )

    def run(self) -> None:
        draw, in_flight = self.draw, deque[tuple[Step, Sampled]]()
        arrivals = sorted((draw.randrange(30), i) for i in range(10))
        for time in range(5000):
            while arrivals and arrivals[0][0] <= time:
                self.add(str(arrivals.pop(0)[1]))
            if not arrivals and not self.scheduler.busy:
                break
            step = self.scheduler.plan()
            if not step.is_empty:
                in_flight.append((step, self.runner.run(step)))
            if in_flight and (len(in_flight) > self.lag or step.is_empty):
                self.commit(*in_flight.popleft())
            if draw.random() < 0.03 and self.found:
                victim = draw.choice(list(self.found))
                if self.scheduler.abort(victim):
                    self.aborted.add(victim)
            self.scheduler.check()
        assert not self.scheduler.busy, "a request never ends"
        self.check()

    def commit(self, step: Step, sampled: Sampled) -> None:
        for output in self.scheduler.commit(step, sampled):
            self.accepted += output.num_accepted
            if output.token_id is not None:
                self.found[output.request_id].append(output.token_id)
            if output.embedding is not None:
                wanted = self.embedded.pop(output.request_id)
                assert not wanted or output.embedding == (wanted,)

    def check(self) -> None:
        assert self.groups.usage == 0, "a block is lost"
        assert self.embedded.keys() <= self.aborted, "an embedding is missing"
        for name, right in self.expected.items():
            if name in self.aborted:
                assert right[: len(self.found[name])] == self.found[name]
            else:
                assert right == self.found[name]


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_every_history_ends_with_the_right_tokens(lag: int, drafts: bool) -> None:
    accepted = 0
    for seed in range(HISTORIES):
        history = History(random.Random(seed), lag, drafts)
        history.run()
        accepted += history.accepted
    assert (accepted > HISTORIES) == drafts, "drafts are accepted only where there are any"
