"""Recurrent states: a slot per row, and snapshots from which cached prefixes are resumed. The fake
runner knows which tokens every state must have seen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.scheduler_harness import VOCAB, Harness, keys_of, prompt_of, run_anything

from inferno.core.kvcache import Snapshots
from inferno.core.types import Copy
from inferno.testing.fake_runner import continuation


def harness_of(num_snapshots: int = 8, **changes: Any) -> Harness:
    return Harness(num_snapshots=num_snapshots, **changes)


def lengths(harness: Harness) -> list[list[int]]:
    """Tokens of each step's slices."""
    return [[s.num_tokens for s in step.slices] for step in harness.steps]


def test_a_state_begins_with_zeros_and_a_cached_prefix_with_a_snapshot() -> None:
    harness = harness_of()
    prompt = prompt_of(0, 18)
    assert harness.ask("first", prompt) == 0
    assert lengths(harness) == [[16], [2]], "cut where the same prompt can be resumed"
    assert harness.steps[0].copies_before == (Copy(1, None, 0),)
    [copy] = harness.steps[0].copies_after
    assert copy == Copy(1, 0, 8 + 1), "behind the rows and the trial's"
    assert harness.ask("again", prompt) == 16
    assert harness.steps[2].copies_before == (Copy(1, copy.target, 0),)
    assert not harness.steps[2].copies_after


def test_a_prompt_of_whole_blocks_is_resumed_before_its_last_and_continued_after_it() -> None:
    harness = harness_of()
    prompt = prompt_of(0, 16)
    assert [harness.ask(name, prompt) for name in ("first", "again")] == [0, 12]
    assert harness.ask("longer", [*prompt, 1, 2]) == 16


def test_where_two_prompts_part_the_third_is_resumed() -> None:
    harness = harness_of()
    system = prompt_of(0, 13)
    hits = [harness.ask(str(i), [*system, *prompt_of(i, 9)]) for i in range(1, 5)]
    assert hits == [0, 0, 12, 12], "the second knows the blocks, and leaves a snapshot there"


def test_a_conversation_is_resumed_at_the_last_block_that_was_generated() -> None:
    harness = harness_of(num_snapshots=2)
    turn = prompt_of(0, 6)
    harness.ask("turn 1", turn, 30)
    assert harness.ask("turn 2", [*turn, *harness.output("turn 1"), 7, 8]) == 32
    assert harness.ask("turn 1 again", turn) == 4, "what was generated took no prompt's place"


def test_of_two_conversations_each_keeps_its_last_snapshot() -> None:
    harness = harness_of(num_snapshots=4)
    turns = {name: prompt_of(seed, 6) for seed, name in enumerate("ab")}
    harness.add("a", turns["a"], 12)
    harness.add("b", turns["b"], 30)
    harness.run()
    assert harness.ask("a 2", [*turns["a"], *harness.output("a"), 7]) == 16
    assert harness.ask("b 2", [*turns["b"], *harness.output("b"), 7]) == 32


def test_a_long_sequence_leaves_snapshots_on_its_way() -> None:
    harness = harness_of(interval=8, budget=100)
    prompt = prompt_of(0, 22)
    harness.ask("first", prompt, 10)
    assert lengths(harness)[:4] == [[8], [8], [4], [2]]
    assert [harness.ask(str(n), prompt[:n]) for n in (9, 17, 21)] == [8, 16, 20]


def test_chunks_end_with_blocks() -> None:
    harness = harness_of(budget=10)
    harness.add("chat", prompt_of(0, 2), 20)
    harness.step()
    harness.add("paper", prompt_of(1, 30))
    harness.run()
    assert lengths(harness)[1:6] == [[1, 8], [1, 8], [1, 8], [1, 4], [1, 2]]


def test_a_hit_is_shortened_to_where_states_and_windows_are_known() -> None:
    harness = harness_of(windows={8: 30}, interval=8)
    prompt = prompt_of(0, 46)
    assert [harness.ask(name, prompt) for name in ("first", "again")] == [0, 44]
    assert harness.groups.prefix is not None
    blocks = harness.groups.prefix.match(keys_of(prompt))
    harness.snapshots.drop(blocks[10])
    assert harness.groups.resumable(blocks) == 10
    harness.window_groups[0].drop(blocks[9])
    assert harness.groups.resumable(blocks) == 8
    harness.snapshots.drop(blocks[7])
    harness.window_groups[0].drop(blocks[5])
    assert harness.groups.resumable(blocks) == 4
    assert harness.ask("shortened", prompt) == 16


def test_samples_of_one_prompt_compute_it_once() -> None:
    harness = harness_of()
    for name in "abc":
        harness.add(name, prompt_of(0, 18), 20)
    harness.run()
    assert [harness.outputs[name][0].num_cached for name in "abc"] == [0, 16, 16]
    assert harness.output("a") == harness.output("b") == continuation(prompt_of(0, 18), 20, VOCAB)


def test_without_room_for_a_snapshot_a_prompt_is_computed_again() -> None:
    harness = harness_of(num_snapshots=0)
    prompt = prompt_of(0, 18)
    assert [harness.ask(name, prompt) for name in ("first", "again")] == [0, 0]
    assert lengths(harness) == [[18], [18]], "and not cut"


def test_without_a_prefix_cache_there_are_no_snapshots() -> None:
    harness = harness_of(prefix=False)
    harness.ask("first", prompt_of(0, 18), 12)
    assert not any(step.copies_after for step in harness.steps)
    assert lengths(harness)[0] == [18]


@pytest.mark.parametrize("prefix", [True, False])
def test_when_blocks_run_out_everything_finishes_with_the_same_tokens(prefix: bool) -> None:
    harness = harness_of(num_blocks=12, max_model_len=48, prefix=prefix)
    prompts = {str(i): prompt_of(i, 3 + 2 * i) for i in range(6)}
    for name, prompt in prompts.items():
        harness.add(name, prompt, 30)
    harness.run()
    stats = harness.scheduler.stats
    assert stats.preemptions > 0 and (stats.prefix_hits > 0) == prefix
    for name, prompt in prompts.items():
        assert harness.output(name) == continuation(prompt, 30, VOCAB)


def test_an_evicted_block_loses_its_snapshot() -> None:
    harness = harness_of(num_blocks=8, max_model_len=32)
    for i in range(4):
        harness.ask(str(i), prompt_of(i, 20))
    assert harness.ask("old", prompt_of(0, 20)) == 0
    harness.groups.reset()
    assert harness.snapshots == Snapshots(8, 8)


def test_a_snapshot_on_the_way_never_takes_the_place_of_a_lasting_one() -> None:
    snapshots = Snapshots(num_rows=2, num_snapshots=2)
    assert snapshots.save(10, lasting=True) == 3
    assert snapshots.save(11, lasting=False) == 4
    assert snapshots.save(12, lasting=False) == 4, "of two on the way the older goes"
    assert snapshots.save(13, lasting=True) == 4
    assert snapshots.save(14, lasting=False) is None
    assert snapshots.use(10) == 3
    assert snapshots.save(15, lasting=True) == 4, "10 was used after 13"
    assert 10 in snapshots and 13 not in snapshots
    snapshots.check({10, 15}.__contains__)


def test_a_superseded_snapshot_goes_first_unless_it_was_used() -> None:
    snapshots = Snapshots(num_rows=2, num_snapshots=3)
    for block in (10, 11, 12):
        snapshots.save(block, lasting=block == 12)
    for block in (11, 12):
        snapshots.supersede(block)
    snapshots.save(13, lasting=False)
    assert 11 not in snapshots and 10 in snapshots, "a lasting one is never superseded"
    for block in (10, 13):
        snapshots.supersede(block)
    snapshots.use(10)
    snapshots.save(14, lasting=False)
    assert 13 not in snapshots
    snapshots.check({10, 12, 14}.__contains__)


def test_equal_blocks_have_one_snapshot() -> None:
    snapshots = Snapshots(num_rows=1, num_snapshots=3)
    for block in (5, 6, 7):
        snapshots.save(block, lasting=block == 6)
    snapshots.deduplicate(computed=6, known=5)
    assert 5 in snapshots and 6 not in snapshots
    snapshots.deduplicate(computed=7, known=8)
    snapshots.save(9, lasting=False)
    snapshots.supersede(8)
    snapshots.save(10, lasting=False)
    assert 8 not in snapshots, "it is still one on the way"
    snapshots.check({5, 9, 10}.__contains__)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_whatever_runs_every_state_has_seen_its_own_tokens(data: st.DataObject) -> None:
    draw = data.draw
    block = draw(st.sampled_from([1, 2, 4]))
    budget = draw(st.integers(6, 20))
    window = draw(st.integers(1, 12))
    windows = {window: -(-window // block) + 3 + -(-budget // block)}
    num_blocks = -(-60 // block) + draw(st.integers(0, 40))
    harness = harness_of(
        draw(st.integers(0, 6)),
        block_size=block,
        num_blocks=num_blocks,
        max_model_len=num_blocks * block,
        budget=budget,
        max_num_seqs=6,
        prefix=draw(st.integers(0, 4)) > 0,
        windows=windows if draw(st.booleans()) else {},
        interval=draw(st.sampled_from([5, 1024])),
    )
    run_anything(harness, data)
