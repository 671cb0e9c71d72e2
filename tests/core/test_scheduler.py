"""The scheduler, with a runner that has no model. What must hold whatever happens is in
`testing.CachePolicyTests`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.core.scheduler_harness import BLOCK, VOCAB, Harness, prompt_of

from inferno.core.kvcache import extend_keys
from inferno.request.requests import FinishReason
from inferno.testing.fake_runner import continuation


def test_sequences_join_and_leave_while_others_run() -> None:
    harness = Harness()
    harness.add("long", prompt_of(0, 5), 10)
    harness.step()
    harness.add("short", prompt_of(1, 3), 2)
    step = harness.step()
    assert [(s.start, s.num_tokens) for s in step.slices] == [(5, 1), (0, 3)]
    harness.run()
    assert len(harness.steps) == 10, "nobody waited for anybody"
    assert harness.output("long") == continuation(prompt_of(0, 5), 10, VOCAB)
    assert harness.output("short") == continuation(prompt_of(1, 3), 2, VOCAB)


def test_a_long_prompt_is_computed_in_chunks_beside_sequences_that_generate() -> None:
    harness = Harness(budget=8)
    harness.add("chat", prompt_of(0, 2), 20)
    harness.step()
    harness.add("paper", prompt_of(1, 30), 1)
    steps = [harness.step() for _ in range(5)]
    assert [[(s.num_tokens, s.samples) for s in step.slices] for step in steps] == [
        *([[(1, True), (7, False)]] * 4),
        [(1, True), (2, True)],
    ]
    harness.run()
    assert harness.output("paper") == continuation(prompt_of(1, 30), 1, VOCAB)


def test_running_sequences_come_before_waiting_prompts() -> None:
    harness = Harness(budget=4, max_num_seqs=4)
    harness.add("chat", prompt_of(0, 2), 9)
    harness.step()
    for i in range(3):
        harness.add(str(i), prompt_of(1 + i, 12))
    for _ in range(8):
        first, *others = harness.step().slices
        assert (first.row, first.num_tokens) == (0, 1), "it generates a token in every step"
        assert sum(s.num_tokens for s in others) == 3, "prompts have what it leaves of the budget"
    assert len(harness.output("chat")) == 9
    harness.run()


def test_first_come_first_served() -> None:
    harness = Harness(max_num_seqs=1)
    for name in "abc":
        harness.add(name, prompt_of(ord(name), 3), 2)
    harness.run()
    assert harness.order == ["a", "b", "c"]


def test_a_lower_priority_number_runs_first_and_equals_in_order_of_arrival() -> None:
    harness = Harness(max_num_seqs=1)
    for name, priority in (("a", 5), ("b", 1), ("c", 1), ("d", -3)):
        harness.add(name, prompt_of(ord(name), 3), priority=priority)
    harness.run()
    assert harness.order == ["d", "b", "c", "a"]


def test_no_more_sequences_run_than_allowed() -> None:
    harness = Harness(max_num_seqs=2)
    for i in range(5):
        harness.add(str(i), prompt_of(i, 3), 3)
    while harness.scheduler.busy:
        assert len(harness.step().slices) <= 2
        assert harness.scheduler.stats.num_running + harness.scheduler.stats.num_waiting <= 5


@pytest.mark.parametrize("prefix", [True, False])
def test_when_blocks_run_out_everything_finishes_with_the_same_tokens(prefix: bool) -> None:
    harness = Harness(num_blocks=12, max_model_len=48, prefix=prefix)
    prompts = {str(i): prompt_of(i, 3 + 2 * i) for i in range(6)}
    for name, prompt in prompts.items():
        harness.add(name, prompt, 30)
    harness.run()
    assert harness.scheduler.stats.preemptions > 0
    for name, prompt in prompts.items():
        assert harness.output(name) == continuation(prompt, 30, VOCAB)


def test_the_least_urgent_sequence_is_preempted() -> None:
    harness = Harness(num_blocks=8, max_model_len=32, budget=16)
    harness.add("patient", prompt_of(1, 8), 20, priority=9)
    harness.step()
    harness.add("urgent", prompt_of(0, 8), 20)
    urgent_steps = 0
    while "urgent" in harness.scheduler.ids:
        harness.step()
        urgent_steps += 1
    assert harness.scheduler.stats.preemptions == 1
    assert urgent_steps == 20, "it never waited, although it came later"
    harness.run()
    assert harness.output("patient") == continuation(prompt_of(1, 8), 20, VOCAB)


def test_of_equally_urgent_sequences_the_latest_is_preempted() -> None:
    harness = Harness(num_blocks=12, max_model_len=48)
    names = ["first", "second", "third"]
    for seed, name in enumerate(names):
        harness.add(name, prompt_of(seed, 8), 24)
    while not harness.scheduler.stats.preemptions:
        harness.step()
    assert [s.row for s in harness.steps[-1].slices] == [0, 1], "the third has lost its row"
    harness.run()
    assert [len(harness.output(name)) for name in names] == [24, 24, 24]


def test_a_preempted_sequence_finds_what_it_computed() -> None:
    harness = Harness(num_blocks=12, max_model_len=48)
    for i in range(3):
        harness.add(str(i), prompt_of(i, 12), 24)
    harness.run()
    assert harness.scheduler.stats.preemptions > 0
    assert harness.scheduler.stats.prefix_hits > 0
    assert all(harness.outputs[str(i)][0].num_cached == 0 for i in range(3)), (
        "its own blocks are no cached prompt"
    )


def test_the_first_token_says_how_long_its_request_was_queued() -> None:
    """Those that find no room wait for those that run, and no preemption counts again."""
    harness = Harness(num_blocks=12, max_model_len=48)
    for i in range(5):
        harness.add(str(i), prompt_of(i, 12), 24)
    harness.run()
    assert harness.scheduler.stats.preemptions > 0
    waited = [harness.outputs[str(i)][0].queue_seconds for i in range(5)]
    assert 0 < waited[0] < waited[4]
    later = (token for tokens in harness.outputs.values() for token in tokens[1:])
    assert not any(token.queue_seconds for token in later)


def test_abort_at_any_time_gives_everything_back() -> None:
    for moment in range(12):
        harness = Harness(num_blocks=12, max_model_len=48, budget=6, max_num_seqs=3)
        for i in range(5):
            harness.add(str(i), prompt_of(i, 9), 12)
        for _ in range(moment):
            harness.step()
        for i in range(5):
            known = str(i) in harness.scheduler.ids
            assert harness.scheduler.abort(str(i)) == known
            harness.scheduler.check()
        assert not harness.scheduler.busy and harness.groups.available() == 12
        assert not harness.scheduler.plan().slices


def test_an_id_may_be_used_again_after_an_abort() -> None:
    harness = Harness()
    harness.add("a", prompt_of(0, 9), 5)
    harness.step()
    harness.scheduler.abort("a")
    harness.add("a", prompt_of(1, 6), 3)
    harness.run()
    assert harness.output("a") == continuation(prompt_of(1, 6), 3, VOCAB)


def test_a_prompt_seen_before_is_found_block_by_block() -> None:
    harness = Harness()
    prompt = prompt_of(0, 18)
    harness.add("first", prompt)
    harness.run()
    harness.add("same", prompt)
    harness.add("longer", [*prompt, 1, 2, 3])
    harness.add("other", [49, *prompt[1:]])
    harness.add("forked", [*prompt[:9], 49, *prompt[10:]])
    harness.run()
    hits = {name: tokens[0].num_cached for name, tokens in harness.outputs.items()}
    assert hits == {"first": 0, "same": 16, "longer": 16, "other": 0, "forked": 8}
    new = [sequence for step in harness.steps for sequence in step.new_sequences]
    assert {each.request.id: each.num_computed for each in new} == hits, "and the runner is told"


def test_generated_tokens_are_found_too() -> None:
    harness = Harness()
    harness.add("turn 1", prompt_of(0, 6), 6)
    harness.run()
    harness.add("turn 2", [*prompt_of(0, 6), *harness.output("turn 1"), 7, 8])
    harness.run()
    assert (
        harness.last("turn 2").num_cached == 8
    )  # 12 tokens are known, the last was drawn and never computed


@pytest.mark.parametrize("windows", [{}, {6: 64}])
def test_of_a_prompt_wholly_in_the_cache_only_the_last_token_is_computed_again(
    windows: dict[int, int],
) -> None:
    """In a copy of its block, which the cached one replaces at once."""
    harness = Harness(windows=windows)
    for name in ("first", "again"):
        harness.add(name, prompt_of(0, 16), 4)
        harness.run()
    assert harness.outputs["again"][0].num_cached == 15
    assert harness.output("again") == harness.output("first")
    moves = [move for step in harness.steps for move in step.moves]
    assert [move.group for move in moves] == list(range(1 + len(windows)))
    assert all(move.source != move.target for move in moves)


def test_the_cached_last_block_may_be_the_one_evicted_for_its_copy() -> None:
    """Then it needs no copy."""
    harness = Harness(num_blocks=4)
    assert harness.ask("first", prompt_of(0, 16)) == 0
    assert harness.ask("again", prompt_of(0, 16)) == 15
    assert not any(step.moves for step in harness.steps)


def test_sequences_that_compute_the_same_at_once_share_blocks_afterwards() -> None:
    harness = Harness()
    for name in ("a", "b", "c"):
        harness.add(name, prompt_of(0, 12), 3)
    for _ in range(3):
        harness.step()
    assert [len(step.slices) for step in harness.steps] == [1, 1, 3], (
        "one computes the prompt, the others find it"
    )
    assert [len(step.moves) for step in harness.steps] == [0, 2, 0], "its last block is copied"
    harness.run()
    assert [harness.outputs[name][0].num_cached for name in "abc"] == [0, 11, 11]
    assert (
        harness.output("a")
        == harness.output("b")
        == harness.output("c")
        == continuation(prompt_of(0, 12), 3, VOCAB)
    )


def test_blocks_filled_with_the_same_at_once_become_one() -> None:
    harness = Harness(prefix=True)
    for name in ("a", "b"):
        harness.add(name, prompt_of(0, 3), 20)  # less than a block: nothing to wait for
    for _ in range(11):
        harness.step()
    assert harness.groups.num_used == 3 + 2, (
        "three full blocks are shared, the one being filled is not"
    )
    harness.run()
    assert harness.output("a") == harness.output("b") == continuation(prompt_of(0, 3), 20, VOCAB)


def test_salts_keep_caches_apart() -> None:
    harness = Harness()
    for name, salt in (("a", "alice"), ("b", "bob"), ("c", ""), ("d", "alice")):
        harness.add(name, prompt_of(0, 16), salt=salt)
        harness.run()
    assert [harness.last(name).num_cached for name in "abcd"] == [0, 0, 0, 15]


@pytest.mark.parametrize("length", [3, 4, 16])
def test_salts_keep_running_sequences_apart(length: int) -> None:
    """The last block of a prompt is copied from a sequence that runs, but not from another's."""
    harness = Harness()
    harness.add("a", prompt_of(0, length), 20, salt="alice")
    harness.step()
    for name, salt in (("b", "bob"), ("c", "alice")):
        harness.add(name, prompt_of(0, length), salt=salt)
    for _ in range(3):
        harness.step()
    assert [harness.outputs[name][0].num_cached for name in "bc"] == [0, length - 1]
    harness.run()


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    harness = Harness()
    harness.add("first", prompt_of(0, 16))
    harness.run()
    harness.add("scored", prompt_of(0, 16), prompt_logprobs=0)
    harness.run()
    assert harness.last("scored").num_cached == 0


def test_an_old_prefix_makes_room_for_a_new_one() -> None:
    harness = Harness(num_blocks=8, max_model_len=32)
    for i in range(4):
        harness.add(str(i), prompt_of(i, 20))
        harness.run()
    harness.add("old", prompt_of(0, 20))
    harness.add("new", prompt_of(3, 20))
    harness.run()
    assert harness.last("old").num_cached == 0


def test_a_full_context_ends_a_request() -> None:
    harness = Harness(max_model_len=20)
    harness.add("open", prompt_of(0, 15), None)
    harness.run()
    assert len(harness.output("open")) == 5 and harness.last("open").finish == FinishReason.LENGTH


def test_end_tokens_and_stop_tokens_end_a_request_and_say_which() -> None:
    prompt = prompt_of(0, 5)
    third = continuation(prompt, 3, VOCAB)[2]
    harness = Harness()
    harness.add("eos", prompt, 9, eos=[third])
    harness.add("stop", prompt, 9, stop=[third])
    harness.add("later", prompt, 9, stop=[third], min_tokens=4)
    harness.run()
    assert [len(harness.output(name)) for name in ("eos", "stop")] == [3, 3]
    assert [(harness.last(n).finish, harness.last(n).stop_id) for n in ("eos", "stop")] == [
        ("stop", None),
        ("stop", third),
    ]
    assert len(harness.output("later")) > 3


@pytest.mark.parametrize("kind", ["eos", "stop"])
def test_an_end_token_counts_from_min_tokens_on(kind: str) -> None:
    prompt = prompt_of(0, 5)
    third = continuation(prompt, 3, VOCAB)[2]
    assert third not in continuation(prompt, 2, VOCAB)
    for least, length in ((2, 3), (3, 3), (4, 9)):
        harness = Harness()
        ends: dict[str, Any] = {kind: [third]}
        harness.add("a", prompt, 9, **ends, min_tokens=least)
        harness.run()
        assert len(harness.output("a")) == length, "the third token ends it, unless four are asked"


def test_a_new_sequence_leaves_each_running_one_a_block_to_grow_into() -> None:
    harness = Harness(num_blocks=4, max_model_len=16)
    harness.add("runs", prompt_of(0, 3), 4)
    harness.step()
    harness.add("waits", prompt_of(1, 12))
    assert len(harness.step().slices) == 1, "three blocks are free, and three are needed"
    harness.run()
    assert harness.scheduler.stats.preemptions == 0
    assert harness.output("waits") == continuation(prompt_of(1, 12), 1, VOCAB)


def test_a_row_taken_over_has_no_updates_of_the_sequence_before() -> None:
    """Two sequences fill the same block at once; the second, told to share it, is aborted."""
    harness = Harness()
    for name in ("a", "b"):
        harness.add(name, prompt_of(0, 3), 20)
    for _ in range(2):
        harness.step()
    harness.scheduler.abort("b")
    harness.add("c", prompt_of(1, 2), 4)
    step = harness.step()
    assert [(update.row, update.index) for update in step.block_updates] == [(0, 1), (1, 0)]
    harness.run()


def test_a_sequence_waits_for_a_chunk_of_its_prompt_but_not_for_a_single_token() -> None:
    harness = Harness(budget=7)
    harness.add("first", prompt_of(0, 8), 5)
    harness.add("longer", [*prompt_of(0, 8), 1, 2])
    assert len(harness.step().slices) == 1, "seven tokens of it are computed already"
    assert [s.num_tokens for s in harness.step().slices] == [1, 6]
    harness.run()


def test_a_preempted_prompt_is_counted_once() -> None:
    harness = Harness(num_blocks=12, max_model_len=48)
    for i in range(3):
        harness.add(str(i), prompt_of(i, 12), 24)
    harness.run()
    stats = harness.scheduler.stats
    assert stats.preemptions > 0 and stats.prefix_hits > 0
    assert (stats.prompt_tokens, stats.cached_tokens) == (36, 0)


def test_a_step_names_only_what_is_new() -> None:
    harness = Harness(max_model_len=90)
    harness.add("a", prompt_of(0, 40), 30)
    harness.step()
    harness.step()
    steps = [harness.step() for _ in range(20)]
    assert all(not step.new_sequences for step in steps)
    assert sum(len(step.block_updates) for step in steps) == 5, "one block for every four tokens"


def test_counters_tell_what_was_asked_computed_and_found() -> None:
    harness = Harness()
    for name in ("a", "b"):
        harness.add(name, prompt_of(0, 10), 3)
        harness.run()
    stats = harness.scheduler.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (20, 8, 6)
    assert (stats.prefix_queries, stats.prefix_hits, stats.preemptions) == (20, 8, 0)
    assert (stats.steps, stats.num_running, stats.kv_usage) == (6, 0, 0.0)


def test_keys_name_a_block_and_all_before_it() -> None:
    def keys(tokens: Sequence[int], salt: str = "") -> list[bytes]:
        digests: list[bytes] = []
        extend_keys(digests, tokens, BLOCK, salt)
        return digests

    whole = keys([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert len(whole) == 2 and len(set(whole)) == 2
    assert keys([0, 2, 3, 4, 5, 6, 7, 8])[1] != whole[1], "the same block after another beginning"
    assert keys([1, 2, 3, 4, 5, 6, 7, 8], "salt") != whole
    grown = keys([1, 2, 3, 4])
    extend_keys(grown, [1, 2, 3, 4, 5, 6, 7, 8, 9], BLOCK)
    assert grown == whole
