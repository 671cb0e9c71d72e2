"""Layers with chunked attention keep the blocks of a sequence's last chunk only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.scheduler_harness import BLOCK, VOCAB, Harness, keys_of, prompt_of, run_anything

from inferno.core.kvcache import CacheGroup, FullGroup, WindowGroup
from inferno.testing.fake_runner import continuation


def chunked(chunk: int, places: int, **changes: Any) -> Harness:
    """With a group of chunks beside the full one."""
    sizes = {"num_blocks": 64, "block_size": BLOCK, "budget": 16, "max_model_len": 256, **changes}
    block_size = sizes["block_size"]
    groups: list[CacheGroup] = [FullGroup(), WindowGroup(1, places, block_size, chunk, True)]
    return Harness(**sizes, cache_groups=groups)


@pytest.mark.parametrize(
    ("chunk", "position", "first"),
    [(4, 0, 0), (4, 3, 0), (4, 4, 1), (8, 7, 0), (8, 8, 2), (8, 15, 2), (8, 16, 4), (12, 23, 3)],
)
def test_the_first_block_of_a_chunk(chunk: int, position: int, first: int) -> None:
    group = WindowGroup(1, 5, 4, chunk, True)
    assert group.first(position) == first == position // chunk * chunk // 4


def test_finished_chunks_are_released() -> None:
    harness = chunked(16, 12)
    harness.add("long", prompt_of(0, 100), 100)
    [group] = harness.window_groups
    counts = []
    while harness.scheduler.busy:
        harness.step()
        counts.append(group.num_used)
    assert harness.output("long") == continuation(prompt_of(0, 100), 100, VOCAB)
    assert max(counts) <= 4, "sixteen tokens lie in four blocks of four"
    assert {0, 1, 2, 3, 4} <= set(counts), "a chunk begins with nothing"


def test_a_prefix_that_ends_with_a_chunk_needs_nothing_of_it() -> None:
    harness = chunked(16, 24)
    prompt = prompt_of(0, 61)
    assert [harness.ask("first", prompt), harness.ask("again", prompt)] == [0, 60]
    [group] = harness.window_groups
    assert harness.groups.prefix is not None
    blocks = harness.groups.prefix.match(keys_of(prompt))
    assert harness.groups.resumable(blocks) == 15
    for block in blocks[:12]:
        group.drop(block)
    assert harness.groups.resumable(blocks) == 15, "the last chunk is there"
    group.drop(blocks[13])
    assert harness.groups.resumable(blocks) == 13
    assert harness.groups.resumable(blocks[:12]) == 12, "a new chunk begins"
    assert harness.groups.resumable(blocks[:11]) == 8, "and so it does before"
    group.drop(blocks[12])
    assert harness.ask("shortened", prompt) == 48


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_whatever_runs_every_token_finds_its_chunk(data: st.DataObject) -> None:
    """The fake runner compares every slot in a chunk with the token that must be there."""
    draw = data.draw
    block = draw(st.sampled_from([1, 2, 4]))
    budget = draw(st.integers(6, 20))
    chunk = block * draw(st.integers(1, 6))
    places = -(-chunk // block) + 1 + -(-budget // block) + draw(st.integers(0, 12))
    harness = chunked(
        chunk,
        places,
        block_size=block,
        num_blocks=-(-60 // block) + draw(st.integers(0, 40)),
        budget=budget,
        max_num_seqs=6,
        max_model_len=100,
        prefix=draw(st.booleans()),
    )
    run_anything(harness, data)
