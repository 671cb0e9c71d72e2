"""Layers with a sliding window keep their window's blocks only, and nobody can tell from the
tokens."""

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
from torch import Tensor

from inferno.builtin.lru import LRUPrefixCache
from inferno.core.engine import Engine
from inferno.core.kvcache import BlockPool
from inferno.core.runner import ModelRunner
from inferno.core.sampling_params import SamplingParams
from inferno.core.scheduler import Scheduler
from inferno.core.types import Request, Step
from inferno.loading import load_model
from inferno.plan import Options, reopen, resolve
from inferno.testing import FakeRunner, generate, randomize
from inferno.testing.fake_runner import continuation
from inferno.testing.tiny import Outcome, Toy

VOCAB = 50


class House:
    """A scheduler whose pool has window blocks, and a runner that knows what each must hold."""

    def __init__(
        self,
        windows: Mapping[int, int],
        *,
        block: int = 4,
        num_blocks: int = 64,
        budget: int = 16,
        seqs: int = 8,
        prefix: bool = True,
    ) -> None:
        self.pool = BlockPool(
            num_blocks, block, LRUPrefixCache(num_blocks) if prefix else None, windows
        )
        self.scheduler = Scheduler(
            self.pool,
            max_model_len=num_blocks * block,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
        )
        self.runner = FakeRunner(block, VOCAB, tuple(windows))
        self.output: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 1, priority: int = 0) -> None:
        self.output[name] = []
        params = SamplingParams(max_tokens=max_tokens)
        self.scheduler.add(
            Request(id=name, token_ids=tuple(prompt), params=params, priority=priority)
        )

    def step(self) -> Step:
        step = self.scheduler.plan()
        assert {g.row for g in step.window_grants} <= self.scheduler._running.keys()
        for token in self.scheduler.commit(step, self.runner.run(step)):
            self.output[token.request_id].append(token.token_id)
            self.cached.setdefault(token.request_id, token.num_cached)
        self.scheduler.check()
        return step

    def run(self) -> None:
        while self.scheduler.busy:
            assert self.step().slices, "requests wait and nothing runs"
        assert self.pool.usage == 0, "a block is not given back"

    def ask(self, name: str, prompt: Sequence[int], max_tokens: int = 1) -> int:
        """Run one request to its end, alone; how many of its tokens were found."""
        self.add(name, prompt, max_tokens)
        self.run()
        assert self.output[name] == continuation(prompt, max_tokens, VOCAB)
        return self.cached[name]


def prompt_of(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(length)]


# --- the pool and the scheduler -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "position", "first"),
    [(1, 0, 0), (1, 4, 1), (5, 7, 0), (5, 8, 1), (5, 11, 1), (5, 12, 2), (6, 8, 0), (20, 8, 0)],
)
def test_the_first_block_a_query_looks_at(window: int, position: int, first: int) -> None:
    [pool] = BlockPool(9, 4, window_blocks={window: 5}).windows
    assert pool.first(position) == first == max(0, position + 1 - window) // 4


def test_a_long_sequence_holds_no_more_than_its_window() -> None:
    house = House({8: 7})
    house.add("long", prompt_of(0, 100), 100)
    [window] = house.pool.windows
    while house.scheduler.busy:
        house.step()
        assert window.num_held <= 3, "eight tokens lie in three blocks of four"
    assert house.output["long"] == continuation(prompt_of(0, 100), 100, VOCAB)


def test_a_step_names_only_the_window_blocks_that_are_new() -> None:
    house = House({8: 16}, budget=40)
    house.add("a", prompt_of(0, 40), 30)
    assert len(house.step().window_grants) == 10, "a prompt computed at once needs them all"
    house.step()
    assert sum(len(house.step().window_grants) for _ in range(20)) == 5, "one for every four tokens"
    house.run()
    house.add("again", [*prompt_of(0, 40), 1, 2])
    assert [g.place for g in house.step().window_grants] == [8, 9, 10], (
        "of what was found the last eight tokens only"
    )


def test_a_prompt_is_found_as_long_as_its_window_is() -> None:
    house = House({8: 16})
    prompt = prompt_of(0, 42)
    assert [house.ask(name, prompt) for name in ("first", "again")] == [0, 40]
    assert house.ask("longer", [*prompt, 1, 2, 3]) == 40
    assert house.ask("other", [1, *prompt]) == 0
    assert house.ask("still", prompt) == 40, "what slid out of a window goes first"
    assert house.ask("large", prompt_of(1, 64)) == 0, "and takes all window blocks"
    assert house.ask("after", prompt) == 0
    assert house.ask("at last", prompt) == 40, (
        "what was computed again is found again, in the blocks that were known"
    )
    assert house.pool.prefix is not None and house.pool.prefix.num_idle == 10 + 1 + 10 + 16, (
        "no content has two blocks"
    )


def test_a_hit_is_shortened_to_where_all_windows_are_whole() -> None:
    """Of 15 blocks, the one window has lost the sixth and the last, the other the third."""
    house = House({8: 30, 12: 30})
    prompt = prompt_of(0, 61)
    assert [house.ask("first", prompt), house.ask("again", prompt)] == [0, 60]
    blocks = house.pool.prefix.match(_keys(prompt))  # type: ignore[union-attr]
    narrow, wide = house.pool.windows
    narrow.drop(blocks[14])
    assert len(house.pool.usable(blocks)) == 14
    for place, left in ((13, 13), (12, 12), (2, 12), (11, 11)):
        wide.drop(blocks[place])
        assert len(house.pool.usable(blocks)) == left
    narrow.drop(blocks[10])
    assert len(house.pool.usable(blocks)) == 10
    narrow.drop(blocks[9])
    wide.drop(blocks[5])
    assert len(house.pool.usable(blocks)) == 9, "the three blocks before it are there"
    wide.drop(blocks[7])
    assert len(house.pool.usable(blocks)) == 2, "the first two, complete from the beginning on"
    assert house.ask("shortened", prompt) == 8


def _keys(prompt: Sequence[int]) -> list[bytes]:
    from inferno.core.kvcache import extend_keys

    keys: list[bytes] = []
    extend_keys(keys, prompt, 4)
    return keys


def test_too_few_window_blocks_preempt_although_there_are_blocks() -> None:
    house = House({16: 14}, num_blocks=200, budget=16, seqs=6)
    prompts = {str(i): prompt_of(i, 4 + i) for i in range(6)}
    for name, prompt in prompts.items():
        house.add(name, prompt, 40)
    house.run()
    assert house.scheduler.stats.preemptions > 0
    assert all(
        house.output[name] == continuation(prompt, 40, VOCAB) for name, prompt in prompts.items()
    )


def test_usage_is_that_of_the_fuller_storage() -> None:
    house = House({8: 7}, num_blocks=50)
    house.add("a", prompt_of(0, 9), 20)
    house.step()
    assert house.scheduler.stats.kv_usage == 3 / 7
    house.add("b", prompt_of(1, 7), 1)
    house.run()


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
    house = House(
        windows,
        block=block,
        num_blocks=num_blocks,
        budget=budget,
        seqs=6,
        prefix=draw(st.booleans()),
    )
    beginnings = [prompt_of(seed, 30) for seed in range(2)]
    wanted: dict[str, tuple[list[int], int]] = {}
    for i in range(draw(st.integers(1, 14))):
        prompt = [
            *beginnings[draw(st.integers(0, 1))][: draw(st.integers(1, 30))],
            *prompt_of(i, draw(st.integers(0, 8))),
        ]
        wanted[str(i)] = prompt, draw(st.integers(1, 20))
        house.add(str(i), *wanted[str(i)], priority=draw(st.integers(0, 1)))
        for _ in range(draw(st.integers(0, 12))):
            house.step()
        if draw(st.integers(0, 9)) == 0:
            house.scheduler.abort(str(i))
            house.scheduler.check()
            wanted.pop(str(i))
        if draw(st.integers(0, 9)) == 0:
            house.pool.forget()
    house.run()
    for name, (prompt, count) in wanted.items():
        assert house.output[name] == continuation(prompt, count, VOCAB)


# --- a model --------------------------------------------------------------------------------------

WINDOW, BLOCK, BUDGET = 20, 8, 48
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
        block_size=BLOCK,
        max_num_seqs=6,
        max_num_batched_tokens=BUDGET,
        attention_backend="torch",
    )
    plan = resolve(str(checkpoint), options)
    assert plan.window_blocks == {WINDOW: 6 * (3 + 1 + 1) + 6}
    return Toy(plan, load_model(reopen(plan)))


@pytest.fixture(scope="module")
def whole(toy: Toy) -> Toy:
    """The same, every layer with all blocks."""
    return Toy(attrs.evolve(toy.plan, window_blocks={}), toy.model)


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


@pytest.mark.parametrize("budget", [7, 13, 48])
def test_chunks_of_a_prompt_change_nothing(
    toy: Toy, whole: Toy, prompts: list[list[int]], budget: int
) -> None:
    chunked = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=budget), toy.model)
    assert_same(generate(chunked, prompts, 8), generate(whole, prompts, 8))


def tight(toy: Toy, **changes: Any) -> Engine:
    """As few window blocks as one sequence needs."""
    return Toy(
        attrs.evolve(toy.plan, window_blocks={WINDOW: 3 + 1 + BUDGET // BLOCK}, **changes),
        toy.model,
    ).engine()


def test_a_prefix_found_or_lost_changes_nothing(toy: Toy, whole: Toy) -> None:
    """What a window has lost is computed again, although the blocks are known."""
    long, other = ([i * i * factor % 160 for i in range(200)] for factor in (3, 7))
    variants = [long, [*long[:150], *other[:30]], other, long, [*long[:180], 5, 6], long[:60], long]
    engine = tight(toy)
    found = []
    for variant in variants:
        [ours], [cold] = generate(toy, [variant], 6, engine=engine), generate(whole, [variant], 6)
        assert_same([ours], [cold])
        found.append(ours.num_cached)
    assert found == [0, 0, 0, 0, 176, 0, 56]


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
        found: dict[str, list[int]] = {str(i): [] for i in range(4)}
        while engine.busy:
            for token in engine.step():
                found[token.request_id].append(token.token_id)
            engine.check()
        return found

    assert sampled(toy.engine()) == sampled(whole.engine()) == sampled(tight(toy))


def test_the_plan_says_what_the_cache_takes(toy: Toy, whole: Toy) -> None:
    for plan in (toy.plan, whole.plan):
        runner = ModelRunner(toy.model, plan)
        assert plan.kv_bytes == sum(
            t.nbytes for layer in runner._cache.layers for t in layer.values()
        )
    assert (
        {i.name: i.nbytes for i in toy.plan.memory}["KV cache"]
        == toy.plan.kv_bytes
        < whole.plan.kv_bytes / 2
    )
