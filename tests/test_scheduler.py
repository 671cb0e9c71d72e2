"""The scheduler, with a runner that has no model. What must hold whatever happens is in
`testing.CachePolicyTests`."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from attrs import define, field

from inferno.builtin.lru import LRUPrefixCache
from inferno.core.kvcache import BlockPool, extend_keys
from inferno.core.sampling_params import SamplingParams
from inferno.core.scheduler import Scheduler
from inferno.core.types import EngineOutput, FinishReason, Request, Step
from inferno.testing import FakeRunner
from inferno.testing.fake_runner import continuation

VOCAB = 50
BLOCK = 4


@define(eq=False)
class House:
    """A scheduler, its pool and a fake runner."""

    num_blocks: int = 64
    max_model_len: int = 100
    max_num_seqs: int = 8
    budget: int = 32
    prefix: bool = True
    pool: BlockPool = field(init=False)
    scheduler: Scheduler = field(init=False)
    runner: FakeRunner = field(init=False)
    tokens: dict[str, list[EngineOutput]] = field(factory=dict, init=False)
    steps: list[Step] = field(factory=list, init=False)
    order: list[str] = field(factory=list, init=False)
    """Request ids in the order of their first tokens."""

    def __attrs_post_init__(self) -> None:
        self.pool = BlockPool(
            self.num_blocks, BLOCK, LRUPrefixCache(self.num_blocks) if self.prefix else None
        )
        self.scheduler = Scheduler(
            self.pool,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
        )
        self.runner = FakeRunner(BLOCK, VOCAB)

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
        self.tokens[request_id] = []
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
        for token in self.scheduler.commit(step, self.runner.run(step)):
            if not self.tokens[token.request_id]:
                self.order.append(token.request_id)
            self.tokens[token.request_id].append(token)
        self.scheduler.check()
        self.steps.append(step)
        return step

    def run(self) -> None:
        while self.scheduler.busy:
            assert self.step().slices, "requests wait and nothing runs"
        assert self.pool.num_available == self.num_blocks, "a block is not given back"

    def output(self, request_id: str) -> list[int]:
        return [token.token_id for token in self.tokens[request_id]]

    def last(self, request_id: str) -> EngineOutput:
        return self.tokens[request_id][-1]


def prompt_of(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(length)]


def test_sequences_join_and_leave_while_others_run() -> None:
    house = House()
    house.add("long", prompt_of(0, 5), 10)
    house.step()
    house.add("short", prompt_of(1, 3), 2)
    step = house.step()
    assert [(s.start, s.num_tokens) for s in step.slices] == [(5, 1), (0, 3)]
    house.run()
    assert len(house.steps) == 10, "nobody waited for anybody"
    assert house.output("long") == continuation(prompt_of(0, 5), 10, VOCAB)
    assert house.output("short") == continuation(prompt_of(1, 3), 2, VOCAB)


def test_a_long_prompt_is_computed_in_chunks_beside_sequences_that_generate() -> None:
    house = House(budget=8)
    house.add("chat", prompt_of(0, 2), 20)
    house.step()
    house.add("paper", prompt_of(1, 30), 1)
    steps = [house.step() for _ in range(5)]
    assert [[(s.num_tokens, s.samples) for s in step.slices] for step in steps] == [
        *([[(1, True), (7, False)]] * 4),
        [(1, True), (2, True)],
    ]
    house.run()
    assert house.output("paper") == continuation(prompt_of(1, 30), 1, VOCAB)


def test_running_sequences_come_before_waiting_prompts() -> None:
    house = House(budget=4, max_num_seqs=4)
    for i in range(4):
        house.add(str(i), prompt_of(i, 2), 5)
    for _ in range(2):
        house.step()
    house.run()
    assert all(house.output(str(i)) == continuation(prompt_of(i, 2), 5, VOCAB) for i in range(4))


def test_first_come_first_served() -> None:
    house = House(max_num_seqs=1)
    for name in "abc":
        house.add(name, prompt_of(ord(name), 3), 2)
    house.run()
    assert house.order == ["a", "b", "c"]


def test_a_lower_priority_number_runs_first_and_equals_in_order_of_arrival() -> None:
    house = House(max_num_seqs=1)
    for name, priority in (("a", 5), ("b", 1), ("c", 1), ("d", -3)):
        house.add(name, prompt_of(ord(name), 3), priority=priority)
    house.run()
    assert house.order == ["d", "b", "c", "a"]


def test_no_more_sequences_run_than_allowed() -> None:
    house = House(max_num_seqs=2)
    for i in range(5):
        house.add(str(i), prompt_of(i, 3), 3)
    while house.scheduler.busy:
        assert len(house.step().slices) <= 2
        assert house.scheduler.stats.num_running + house.scheduler.stats.num_waiting <= 5


@pytest.mark.parametrize("prefix", [True, False])
def test_when_blocks_run_out_everything_finishes_with_the_same_tokens(prefix: bool) -> None:
    house = House(num_blocks=12, max_model_len=48, prefix=prefix)
    prompts = {str(i): prompt_of(i, 3 + 2 * i) for i in range(6)}
    for name, prompt in prompts.items():
        house.add(name, prompt, 30)
    house.run()
    assert house.scheduler.stats.preemptions > 0
    for name, prompt in prompts.items():
        assert house.output(name) == continuation(prompt, 30, VOCAB)


def test_the_least_urgent_sequence_is_preempted() -> None:
    house = House(num_blocks=8, max_model_len=32, budget=16)
    house.add("patient", prompt_of(1, 8), 20, priority=9)
    house.step()
    house.add("urgent", prompt_of(0, 8), 20)
    urgent_steps = 0
    while house.scheduler.knows("urgent"):
        house.step()
        urgent_steps += 1
    assert house.scheduler.stats.preemptions == 1
    assert urgent_steps == 20, "it never waited, although it came later"
    house.run()
    assert house.output("patient") == continuation(prompt_of(1, 8), 20, VOCAB)


def test_a_preempted_sequence_finds_what_it_computed() -> None:
    house = House(num_blocks=12, max_model_len=48)
    for i in range(3):
        house.add(str(i), prompt_of(i, 12), 24)
    house.run()
    assert house.scheduler.stats.preemptions > 0
    assert house.scheduler.stats.prefix_hits > 0
    assert all(house.tokens[str(i)][0].num_cached == 0 for i in range(3)), (
        "its own blocks are no cached prompt"
    )


def test_abort_at_any_time_gives_everything_back() -> None:
    for moment in range(12):
        house = House(num_blocks=12, max_model_len=48, budget=6, max_num_seqs=3)
        for i in range(5):
            house.add(str(i), prompt_of(i, 9), 12)
        for _ in range(moment):
            house.step()
        for i in range(5):
            known = house.scheduler.knows(str(i))
            assert house.scheduler.abort(str(i)) == known
            house.scheduler.check()
        assert not house.scheduler.busy and house.pool.num_available == 12
        assert not house.scheduler.plan().slices


def test_an_id_may_be_used_again_after_an_abort() -> None:
    house = House()
    house.add("a", prompt_of(0, 9), 5)
    house.step()
    house.scheduler.abort("a")
    house.add("a", prompt_of(1, 6), 3)
    house.run()
    assert house.output("a") == continuation(prompt_of(1, 6), 3, VOCAB)


def test_a_prompt_seen_before_is_found_block_by_block() -> None:
    house = House()
    prompt = prompt_of(0, 18)
    house.add("first", prompt)
    house.run()
    house.add("same", prompt)
    house.add("longer", [*prompt, 1, 2, 3])
    house.add("other", [49, *prompt[1:]])
    house.add("forked", [*prompt[:9], 49, *prompt[10:]])
    house.run()
    found = {name: tokens[0].num_cached for name, tokens in house.tokens.items()}
    assert found == {"first": 0, "same": 16, "longer": 16, "other": 0, "forked": 8}


def test_generated_tokens_are_found_too() -> None:
    house = House()
    house.add("turn 1", prompt_of(0, 6), 6)
    house.run()
    house.add("turn 2", [*prompt_of(0, 6), *house.output("turn 1"), 7, 8])
    house.run()
    assert (
        house.last("turn 2").num_cached == 8
    )  # 12 tokens are known, the last was drawn and never computed


def test_of_a_prompt_wholly_in_the_cache_the_last_block_is_computed_again() -> None:
    house = House()
    for name in ("first", "again"):
        house.add(name, prompt_of(0, 16), 4)
        house.run()
    assert house.tokens["again"][0].num_cached == 12
    assert house.output("again") == house.output("first")


def test_sequences_that_compute_the_same_at_once_share_blocks_afterwards() -> None:
    house = House()
    for name in ("a", "b", "c"):
        house.add(name, prompt_of(0, 12), 3)
    house.step()
    house.step()
    assert [len(step.slices) for step in house.steps] == [1, 3], (
        "one computes the prompt, the others find it"
    )
    house.run()
    assert [house.tokens[name][0].num_cached for name in "abc"] == [0, 8, 8]
    assert (
        house.output("a")
        == house.output("b")
        == house.output("c")
        == continuation(prompt_of(0, 12), 3, VOCAB)
    )


def test_blocks_filled_with_the_same_at_once_become_one() -> None:
    house = House(prefix=True)
    for name in ("a", "b"):
        house.add(name, prompt_of(0, 3), 20)  # less than a block: nothing to wait for
    for _ in range(11):
        house.step()
    assert house.pool.num_held == 3 + 2, "three full blocks are shared, the one being filled is not"
    house.run()
    assert house.output("a") == house.output("b") == continuation(prompt_of(0, 3), 20, VOCAB)


def test_salts_keep_caches_apart() -> None:
    house = House()
    for name, salt in (("a", "alice"), ("b", "bob"), ("c", ""), ("d", "alice")):
        house.add(name, prompt_of(0, 16), salt=salt)
        house.run()
    assert [house.last(name).num_cached for name in "abcd"] == [0, 0, 0, 12]


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    house = House()
    house.add("first", prompt_of(0, 16))
    house.run()
    house.add("scored", prompt_of(0, 16), prompt_logprobs=0)
    house.run()
    assert house.last("scored").num_cached == 0


def test_an_old_prefix_makes_room_for_a_new_one() -> None:
    house = House(num_blocks=8, max_model_len=32)
    for i in range(4):
        house.add(str(i), prompt_of(i, 20))
        house.run()
    house.add("old", prompt_of(0, 20))
    house.add("new", prompt_of(3, 20))
    house.run()
    assert house.last("old").num_cached == 0


def test_a_full_context_ends_a_request() -> None:
    house = House(max_model_len=20)
    house.add("open", prompt_of(0, 15), None)
    house.run()
    assert len(house.output("open")) == 5 and house.last("open").finish == FinishReason.LENGTH


def test_end_tokens_and_stop_tokens_end_a_request_and_say_which() -> None:
    prompt = prompt_of(0, 5)
    third = continuation(prompt, 3, VOCAB)[2]
    house = House()
    house.add("eos", prompt, 9, eos=[third])
    house.add("stop", prompt, 9, stop=[third])
    house.add("later", prompt, 9, stop=[third], min_tokens=4)
    house.run()
    assert [len(house.output(name)) for name in ("eos", "stop")] == [3, 3]
    assert [(house.last(n).finish, house.last(n).stop_id) for n in ("eos", "stop")] == [
        ("stop", None),
        ("stop", third),
    ]
    assert len(house.output("later")) > 3


def test_a_step_names_only_what_is_new() -> None:
    house = House(max_model_len=90)
    house.add("a", prompt_of(0, 40), 30)
    house.step()
    house.step()
    steps = [house.step() for _ in range(20)]
    assert all(not step.new_sequences for step in steps)
    assert sum(len(step.grants) for step in steps) == 5, "one block for every four tokens"


def test_counters_tell_what_was_asked_computed_and_found() -> None:
    house = House()
    for name in ("a", "b"):
        house.add(name, prompt_of(0, 10), 3)
        house.run()
    stats = house.scheduler.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (20, 8, 6)
    assert (stats.prefix_queries, stats.prefix_hits, stats.preemptions) == (20, 8, 0)
    assert (stats.steps, stats.num_running, stats.kv_usage) == (6, 0, 0.0)


def test_keys_name_a_block_and_all_before_it() -> None:
    def keys(tokens: Sequence[int], salt: str = "") -> list[bytes]:
        found: list[bytes] = []
        extend_keys(found, tokens, BLOCK, salt)
        return found

    whole = keys([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert len(whole) == 2 and len(set(whole)) == 2
    assert keys([0, 2, 3, 4, 5, 6, 7, 8])[1] != whole[1], "the same block after another beginning"
    assert keys([1, 2, 3, 4, 5, 6, 7, 8], "salt") != whole
    grown = keys([1, 2, 3, 4])
    extend_keys(grown, [1, 2, 3, 4, 5, 6, 7, 8, 9], BLOCK)
    assert grown == whole
