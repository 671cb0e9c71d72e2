"""A cache group of a kind that no plan has takes part without a change in scheduler or groups."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.core.scheduler_harness import BLOCK, VOCAB, Harness, prompt_of
from tests.core.tiered_group import TieredGroup

from inferno.builtin.lru import LRUPrefixCache
from inferno.core import schedule
from inferno.core.kvcache import (
    CacheGroup,
    FullGroup,
    Snapshots,
    StateGroup,
    WindowGroup,
    groups,
)
from inferno.testing.cache_policy import BLOCK_SIZE, ROWS, CacheMachine
from inferno.testing.fake_runner import continuation

MIXTURES: dict[str, Callable[[], list[CacheGroup]]] = {
    "alone": lambda: [TieredGroup(0, 11, 5, BLOCK_SIZE)],
    "beside full": lambda: [FullGroup(0), TieredGroup(1, 11, 3, BLOCK_SIZE)],
    "without full": lambda: [WindowGroup(0, 8, BLOCK_SIZE, 5), TieredGroup(1, 12, 9, BLOCK_SIZE)],
    "beside all": lambda: [
        TieredGroup(0, 11, 5, BLOCK_SIZE),
        WindowGroup(1, 8, BLOCK_SIZE, 5),
        FullGroup(2),
        StateGroup(3, Snapshots(ROWS, 2), BLOCK_SIZE, interval=6),
    ],
}


def tiered(num_blocks: int, num_places: int, num_copies: int) -> tuple[Harness, TieredGroup]:
    tier = TieredGroup(0, num_places, num_copies, BLOCK)
    length = num_places * BLOCK
    return Harness(num_blocks=num_blocks, max_model_len=length, cache_groups=[tier]), tier


def test_a_block_that_comes_back_is_not_copied_before_it_is_there() -> None:
    machine = CacheMachine(LRUPrefixCache, MIXTURES["alone"]())
    for prompt, max_tokens, priority in (
        ([0] * 10, 6, 1),
        ([0] * 10, 1, 1),
        ([0, 1, *[0] * 4], 8, 0),
    ):
        machine._ask(prompt, max_tokens, priority, "")
    machine.drain()


@pytest.mark.parametrize(
    "mixture",
    [
        n if n in ("alone", "beside all") else pytest.param(n, marks=pytest.mark.slow)
        for n in MIXTURES
    ],
)
def test_a_tier_of_copies_holds_no_other_content_whatever_happens(mixture: str) -> None:
    run_state_machine_as_test(
        lambda: CacheMachine(LRUPrefixCache, MIXTURES[mixture]()),  # type: ignore[arg-type]  # whatever makes one will do
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_what_has_left_the_device_is_copied_back() -> None:
    harness, tier = tiered(num_blocks=30, num_places=8, num_copies=20)
    prompts = [prompt_of(seed, 26) for seed in range(4)]
    for name, prompt in enumerate(prompts):
        assert harness.ask(str(name), prompt) == 0
    assert tier.num_restored == 0
    assert harness.ask("first again", prompts[0]) == 0, "of 24 blocks 20 have copies, the latest"
    assert harness.ask("third again", prompts[2]) == 24, "from copies only"
    assert tier.num_restored == 6
    [copies] = [step.copies_before for step in harness.steps[-1:]]
    assert all(copy.source is not None and copy.source >= 8 > copy.target for copy in copies)


def test_without_copies_a_prompt_is_computed_again() -> None:
    harness, tier = tiered(num_blocks=30, num_places=7, num_copies=0)
    for name in ("first", "other", "first again"):
        assert harness.ask(name, prompt_of(name == "other", 26)) == 0
    assert tier.num_restored == 0 and harness.groups.num_used == 0


def test_sequences_are_preempted_for_places_and_resumed_from_copies() -> None:
    harness, tier = tiered(num_blocks=60, num_places=12, num_copies=48)
    prompts = {str(i): prompt_of(i, 12) for i in range(4)}
    for name, prompt in prompts.items():
        harness.add(name, prompt, 24)
    harness.run()
    assert harness.scheduler.stats.preemptions > 0 and tier.num_restored > 0
    for name, prompt in prompts.items():
        assert harness.output(name) == continuation(prompt, 24, VOCAB)


def test_the_loops_over_groups_ask_for_no_kind() -> None:
    kinds = r".*(\bif .*\b(window|snapshot|state|full)|\.kind\b|WindowGroup|StateGroup).*"
    source = Path(groups.__file__).read_text()
    assert "isinstance" not in source
    for path in Path(schedule.__file__).parent.glob("*.py"):
        source += path.read_text()
    assert not [match[0] for match in re.finditer(kinds, source)]
