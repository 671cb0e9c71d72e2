"""Layers with a sliding window keep their window's blocks only, and give the same tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.scheduler_harness import BLOCK, VOCAB, Harness, keys_of, prompt_of, run_anything
from torch import Tensor

from inferno.core.engine import Engine
from inferno.core.kvcache import WindowGroup
from inferno.core.runner import ModelRunner
from inferno.core.types import BlockUpdate, Step
from inferno.plan import Options, reopen, resolve
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import generate, randomize
from inferno.testing.alike import alike
from inferno.testing.fake_runner import continuation
from inferno.testing.tiny import Outcome, Toy
from inferno.weights.loading import load_model


def windowed(windows: Mapping[int, int], **changes: Any) -> Harness:
    """With a group for each sliding window: window -> blocks. A context may fill all blocks."""
    sizes = {"num_blocks": 64, "block_size": BLOCK, "budget": 16, **changes}
    longest = sizes["num_blocks"] * sizes["block_size"]
    return Harness(**sizes, windows=windows, max_model_len=longest)


def window_updates(step: Step) -> list[BlockUpdate]:
    return [update for update in step.block_updates if update.group > 0]


# --- the groups and the scheduler ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "position", "first"),
    [(1, 0, 0), (1, 4, 1), (5, 7, 0), (5, 8, 1), (5, 11, 1), (5, 12, 2), (6, 8, 0), (20, 8, 0)],
)
def test_the_first_block_a_query_looks_at(window: int, position: int, first: int) -> None:
    assert (
        WindowGroup(1, 5, 4, window).first(position) == first == max(0, position + 1 - window) // 4
    )


def test_a_long_sequence_holds_no_more_than_its_window() -> None:
    harness = windowed({8: 7})
    harness.add("long", prompt_of(0, 100), 100)
    [window] = harness.window_groups
    while harness.scheduler.busy:
        harness.step()
        assert window.num_used <= 3, "eight tokens lie in three blocks of four"
    assert harness.output("long") == continuation(prompt_of(0, 100), 100, VOCAB)


def test_a_step_names_only_the_window_blocks_that_are_new() -> None:
    harness = windowed({8: 16}, budget=40)
    harness.add("a", prompt_of(0, 40), 30)
    assert len(window_updates(harness.step())) == 10, "a prompt computed at once needs them all"
    harness.step()
    assert sum(len(window_updates(harness.step())) for _ in range(20)) == 5, (
        "one for every four tokens"
    )
    harness.run()
    harness.add("again", [*prompt_of(0, 40), 1, 2])
    assert [u.index for u in window_updates(harness.step())] == [8, 9, 10], (
        "of what was found the last eight tokens only"
    )


def test_a_prompt_is_found_as_long_as_its_window_is() -> None:
    harness = windowed({8: 16})
    prompt = prompt_of(0, 42)
    assert [harness.ask(name, prompt) for name in ("first", "again")] == [0, 40]
    assert harness.ask("longer", [*prompt, 1, 2, 3]) == 40
    assert harness.ask("other", [1, *prompt]) == 0
    assert harness.ask("still", prompt) == 40, "what slid out of a window goes first"
    assert harness.ask("large", prompt_of(1, 64)) == 0, "and takes all window blocks"
    assert harness.ask("after", prompt) == 0
    assert harness.ask("at last", prompt) == 40, (
        "what was computed again is found again, in the blocks that were known"
    )
    assert (
        harness.groups.prefix is not None and harness.groups.prefix.num_idle == 10 + 1 + 10 + 16
    ), "no content has two blocks"


def test_a_hit_is_shortened_to_where_all_windows_are_whole() -> None:
    """Of 15 blocks, the one window has lost the sixth and the last, the other the third."""
    harness = windowed({8: 30, 12: 30})
    prompt = prompt_of(0, 61)
    assert [harness.ask("first", prompt), harness.ask("again", prompt)] == [0, 60]
    assert harness.groups.prefix is not None
    blocks = harness.groups.prefix.match(keys_of(prompt))
    narrow, wide = harness.window_groups
    narrow.drop(blocks[14])
    assert harness.groups.resumable(blocks) == 14
    for place, left in ((13, 13), (12, 12), (2, 12), (11, 11)):
        wide.drop(blocks[place])
        assert harness.groups.resumable(blocks) == left
    narrow.drop(blocks[10])
    assert harness.groups.resumable(blocks) == 10
    narrow.drop(blocks[9])
    wide.drop(blocks[5])
    assert harness.groups.resumable(blocks) == 9, "the three blocks before it are there"
    wide.drop(blocks[7])
    assert harness.groups.resumable(blocks) == 2, "the first two, complete from the beginning on"
    assert harness.ask("shortened", prompt) == 8


def test_too_few_window_blocks_preempt_although_there_are_blocks() -> None:
    harness = windowed({16: 14}, num_blocks=200, budget=16, max_num_seqs=6)
    prompts = {str(i): prompt_of(i, 4 + i) for i in range(6)}
    for name, prompt in prompts.items():
        harness.add(name, prompt, 40)
    harness.run()
    assert harness.scheduler.stats.preemptions > 0
    assert all(
        harness.output(name) == continuation(prompt, 40, VOCAB) for name, prompt in prompts.items()
    )


def test_usage_is_that_of_the_fuller_storage() -> None:
    harness = windowed({8: 7}, num_blocks=50)
    harness.add("a", prompt_of(0, 9), 20)
    harness.step()
    assert harness.scheduler.stats.kv_usage == 3 / 7
    harness.add("b", prompt_of(1, 7), 1)
    harness.run()


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_whatever_runs_every_token_finds_what_it_looks_at(data: st.DataObject) -> None:
    """The fake runner compares every slot in a window with the token that must be there."""
    draw = data.draw
    block = draw(st.sampled_from([1, 2, 4]))
    budget = draw(st.integers(6, 20))
    sizes = draw(st.lists(st.integers(1, 20), max_size=3, unique=True))
    spare = draw(st.integers(0, 12))
    windows = {w: -(-w // block) + 1 + -(-budget // block) + spare for w in sizes}
    num_blocks = -(-60 // block) + draw(st.integers(0, 40))
    harness = windowed(
        windows,
        block_size=block,
        num_blocks=num_blocks,
        budget=budget,
        max_num_seqs=6,
        prefix=draw(st.booleans()),
    )
    run_anything(harness, data)


# --- a model --------------------------------------------------------------------------------------

WINDOW, BLOCK_SIZE, BUDGET = 20, 8, 48
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": True,
    "sliding_window": WINDOW,
}
LAYERS = {
    "mixed": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    "all": ["sliding_attention"] * 4,
}


@pytest.fixture(scope="module", params=LAYERS)
def reference(request: pytest.FixtureRequest) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {k: v for k, v in CONFIG.items() if k not in ("architectures", "model_type")}
    config = AutoConfig.for_model("qwen3", **fields, layer_types=LAYERS[request.param])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    return model.eval()


@pytest.fixture(scope="module")
def checkpoint(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("windowed")
    reference.save_pretrained(path)
    (path / "config.json").write_text(
        json.dumps({**CONFIG, "layer_types": reference.config.layer_types})
    )
    return path


@pytest.fixture(scope="module")
def toy(checkpoint: Path) -> Toy:
    options = Options(
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        max_num_seqs=6,
        max_num_batched_tokens=BUDGET,
        attention_backend="torch",
    )
    plan = resolve(str(checkpoint), options)
    assert plan.groups[1].window == WINDOW and plan.groups[1].num_blocks == 6 * (3 + 1 + 1) + 6
    return Toy(plan, load_model(reopen(plan)))


@pytest.fixture(scope="module")
def whole(toy: Toy) -> Toy:
    """The same, every layer with all blocks."""
    full, window = toy.plan.groups
    groups = (
        attrs.evolve(
            full,
            layers=(0, 1, 2, 3),
            unit_bytes=full.unit_bytes + window.unit_bytes,
        ),
    )
    return Toy(attrs.evolve(toy.plan, groups=groups), toy.model)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(1)
    return [
        [draw.randrange(160) for _ in range(length)]
        for length in (1, 7, WINDOW, WINDOW + 1, 90, 200)
    ]


def assert_same(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.token_ids == other.token_ids
        torch.testing.assert_close(mine.logits_NV, other.logits_NV, rtol=1e-4, atol=1e-4)


def reference_logits(reference: Any, token_ids: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits_LV: Tensor = reference(torch.tensor([token_ids])).logits[0]
    return logits_LV


def test_tokens_and_logits_far_beyond_the_window_equal_transformers(
    toy: Toy, whole: Toy, reference: Any, prompts: list[list[int]]
) -> None:
    outcomes = generate(toy, prompts, 64)
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        theirs_NV = reference_logits(reference, [*prompt, *outcome.token_ids])[len(prompt) - 1 : -1]
        torch.testing.assert_close(outcome.logits_NV, theirs_NV, rtol=1e-4, atol=1e-4)
        assert outcome.token_ids == tuple(theirs_NV.argmax(-1).tolist())
    assert_same(outcomes, generate(whole, prompts, 64))


@pytest.mark.parametrize(
    "budget",
    [7, pytest.param(13, marks=pytest.mark.slow), pytest.param(48, marks=pytest.mark.slow)],
)
def test_chunks_of_a_prompt_change_nothing(
    toy: Toy, whole: Toy, prompts: list[list[int]], budget: int
) -> None:
    chunked = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=budget), toy.model)
    assert_same(generate(chunked, prompts, 8), generate(whole, prompts, 8))


def tight(toy: Toy, **changes: Any) -> Engine:
    """As few window blocks as one sequence needs."""
    full, window = toy.plan.groups
    groups = full, attrs.evolve(window, num_blocks=3 + 1 + BUDGET // BLOCK_SIZE)
    return Toy(attrs.evolve(toy.plan, groups=groups, **changes), toy.model).engine()


def test_a_prefix_found_or_lost_changes_nothing(toy: Toy, whole: Toy) -> None:
    """What a window has lost is computed again, although the blocks are known."""
    long, other = ([i * i * factor % 160 for i in range(200)] for factor in (3, 7))
    variants = [long, [*long[:150], *other[:30]], other, long, [*long[:180], 5, 6], long[:60], long]
    engine = tight(toy)
    hits = []
    for variant in variants:
        [ours], [cold] = generate(toy, [variant], 6, engine=engine), generate(whole, [variant], 6)
        assert_same([ours], [cold])
        hits.append(ours.num_cached)
    assert hits == [0, 0, 0, 0, 176, 0, 56]


def test_with_room_prefixes_are_found_as_without_windows(
    toy: Toy, whole: Toy, prompts: list[list[int]]
) -> None:
    variants = [
        prompts[-1],
        [*prompts[-1], 1, 2],
        prompts[-1][:150],
        prompts[-2],
        [*prompts[-2], 3],
    ]
    engines = toy.engine(), whole.engine()
    for variant in variants:
        ours, theirs = (generate(toy, [variant], 6, engine=engine) for engine in engines)
        assert_same(ours, theirs)
        assert ours[0].num_cached == theirs[0].num_cached


@pytest.mark.slow
@alike
def test_preemption_for_want_of_window_blocks_changes_nothing(
    toy: Toy, whole: Toy, prompts: list[list[int]]
) -> None:
    for policy in ("lru", "none"):
        squeezed = generate(toy, prompts, 64, engine=tight(toy, cache_policy=policy))
        assert squeezed[0].stats.preemptions > 0
        assert_same(squeezed, generate(whole, prompts, 64))


def test_samples_of_one_prompt_share_window_blocks(
    toy: Toy, whole: Toy, prompts: list[list[int]]
) -> None:
    def sampled(engine: Engine) -> dict[str, list[int]]:
        for i in range(4):
            params = SamplingParams(temperature=1.0, seed=i, max_tokens=64)
            engine.submit(Request(id=str(i), token_ids=tuple(prompts[-2]), params=params))
        ids: dict[str, list[int]] = {str(i): [] for i in range(4)}
        while engine.busy:
            for token in engine.step():
                assert token.token_id is not None
                ids[token.request_id].append(token.token_id)
            engine.check()
        return ids

    assert sampled(toy.engine()) == sampled(whole.engine()) == sampled(tight(toy))


def test_the_plan_says_what_the_cache_takes(toy: Toy, whole: Toy) -> None:
    for plan in (toy.plan, whole.plan):
        runner = ModelRunner(toy.model, plan)
        assert plan.kv_bytes == sum(
            t.nbytes for layer in runner.cache.layers for t in layer.values()
        )
    assert (
        {i.name: i.nbytes for i in toy.plan.memory}["KV cache"]
        == toy.plan.kv_bytes
        < whole.plan.kv_bytes / 2
    )
