"""Models with recurrent states, alone and beside attention, equal a naive reference whatever is
cached, cut, preempted or recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file
from tests.toy_states import ToyConfig, catalog_with_toy, naive_logits, write_toy

from inferno.catalog import load_catalog
from inferno.contracts import AttentionSpec, CacheTensor, StateSpec
from inferno.core.engine import Engine
from inferno.core.runner import Tables
from inferno.core.runner.inputs import InputSpec
from inferno.core.runner.replay import Replays
from inferno.core.types import BlockUpdate, NewSequence, Slice, Step
from inferno.errors import CheckpointError, OutOfMemoryError
from inferno.nn.batch import Batch
from inferno.plan import (
    CaptureUse,
    Options,
    open_model,
    plan_from_json,
    plan_to_json,
    resolve,
    with_num_blocks,
)
from inferno.plan.cache_groups import StateUse
from inferno.plan.cache_size import CacheSizes, describe
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import generate
from inferno.testing.tiny import Outcome, Toy
from inferno.weights.loading import load_model

LAYERS = {
    "states only": ["state", "state"],
    "beside attention": ["state", "attention", "state", "state"],
    "beside windows": ["window", "state", "attention", "window"],
}
BUDGET = 40
GIB = 1 << 30


def on_cpu(**changes: Any) -> Options:
    given = {"device": "cpu", "dtype": "float32", "max_num_seqs": 4, **changes}
    return Options(**{"block_size": 8, "max_num_batched_tokens": BUDGET, **given})


@pytest.fixture(scope="module", params=LAYERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_toy(tmp_path_factory.mktemp("toy"), LAYERS[request.param])


@pytest.fixture(scope="module")
def toy(checkpoint: str) -> Toy:
    catalog = catalog_with_toy()
    with open_model(checkpoint, on_cpu(), catalog) as opened:
        return Toy(opened.plan, load_model(opened))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(2)
    return [[draw.randrange(64) for _ in range(length)] for length in (1, 7, 8, 16, 61, 130)]


def assert_right(toy: Toy, prompts: Sequence[Sequence[int]], outcomes: Sequence[Outcome]) -> None:
    """Logits and tokens are the naive reference's."""
    config = ToyConfig.from_json(toy.plan.config)
    tensors = load_file(Path(toy.plan.path) / "model.safetensors")
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        theirs_NV = naive_logits(tensors, config, [*prompt, *outcome.token_ids])
        theirs_NV = theirs_NV[len(prompt) - 1 : -1].float()
        torch.testing.assert_close(outcome.logits_NV, theirs_NV, rtol=1e-4, atol=1e-4)
        assert outcome.token_ids == tuple(theirs_NV.argmax(-1).tolist())


def test_logits_equal_the_naive_reference(toy: Toy, prompts: list[list[int]]) -> None:
    """Ragged prompts, in chunks beside single tokens, more than there are rows."""
    assert_right(toy, prompts, generate(toy, prompts, 24))


@pytest.mark.parametrize(
    "budget",
    [pytest.param(4, marks=pytest.mark.slow), 7, pytest.param(13, marks=pytest.mark.slow), BUDGET],
)
def test_chunks_of_a_prompt_change_nothing(toy: Toy, prompts: list[list[int]], budget: int) -> None:
    chunked = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=budget), toy.model)
    assert_right(toy, prompts, generate(chunked, prompts, 8))


def test_a_prefix_found_or_lost_changes_nothing(toy: Toy, prompts: list[list[int]]) -> None:
    long = prompts[-1]
    fork = [*long[:50], 1, 2, 3]
    variants = [long, long, long[:125], fork, fork[:52], [*long, 5, 6], long[:60]]
    engine, hits = toy.engine(), []
    for variant in variants:
        outcomes = generate(toy, [variant], 6, engine=engine)
        assert_right(toy, [variant], outcomes)
        hits.append(outcomes[0].num_cached)
    assert hits == [0, 128, 120, 40, 48, 128, 48]


def test_with_one_snapshot_hits_are_few_and_right(toy: Toy, prompts: list[list[int]]) -> None:
    *others, states = toy.plan.groups
    groups = (*others, attrs.evolve(states, num_snapshots=1))
    tight = Toy(attrs.evolve(toy.plan, groups=groups), toy.model)
    engine = tight.engine()
    for prompt in [prompts[-1], prompts[-1], prompts[-2], prompts[-1]]:
        assert_right(toy, [prompt], generate(tight, [prompt], 20, engine=engine))
    assert engine.stats().prefix_hits == 128


@pytest.mark.parametrize("policy", ["lru", pytest.param("none", marks=pytest.mark.slow)])
def test_preemption_changes_nothing(toy: Toy, prompts: list[list[int]], policy: str) -> None:
    plan = attrs.evolve(toy.plan, groups=with_num_blocks(toy.plan.groups, 23), cache_policy=policy)
    squeezed = generate(Toy(plan, toy.model), prompts, 40)
    assert squeezed[0].stats.preemptions > 0
    assert_right(toy, prompts, squeezed)


def test_samples_of_one_prompt_differ_as_if_alone(toy: Toy, prompts: list[list[int]]) -> None:
    def sampled(together: bool) -> list[list[int]]:
        engine, tokens = toy.engine(), [list[int]() for _ in range(4)]
        for i in range(4):
            params = SamplingParams(temperature=1.0, seed=i, max_tokens=30)
            engine.submit(Request(id=str(i), token_ids=tuple(prompts[-2]), params=params))
            while engine.busy and not (together and i < 3):
                for output in engine.step():
                    assert output.token_id is not None
                    tokens[int(output.request_id)].append(output.token_id)
                engine.check()
        return tokens

    assert sampled(together=True) == sampled(together=False)


def test_the_plan_says_what_the_cache_takes(toy: Toy) -> None:
    assert toy.plan.kv_bytes == sum(tensor.nbytes for tensor in toy.cache())
    [item] = [item for item in toy.plan.memory if item.name == "KV cache"]
    assert item.nbytes == toy.plan.kv_bytes
    assert "5 states and 16 snapshots" in item.why


def test_a_plan_with_both_kinds_of_layers_is_the_same_after_its_journey(toy: Toy) -> None:
    assert plan_from_json(plan_to_json(toy.plan)) == toy.plan


# --- the contract ---------------------------------------------------------------------------------


def test_equal_specs_are_equal_whatever_the_order_of_their_tensors() -> None:
    sum_, conv = CacheTensor((4,), "float32"), CacheTensor((2, 4), "compute")
    spec = StateSpec(tensors={"sum": sum_, "conv": conv})
    assert {spec, StateSpec(tensors={"conv": conv, "sum": sum_})} == {spec}
    assert spec != StateSpec(tensors={"sum": sum_})
    assert spec.resolved("bfloat16")["conv"] == CacheTensor((2, 4), "bfloat16")


def test_each_group_says_what_a_sequence_takes_of_it() -> None:
    """Latent attention is a full group of other bytes."""
    groups = CacheSizes(
        [],
        [use_of({"state": CacheTensor((1024,), "float32")}, layers=2)],
        block_size=16,
        max_num_seqs=4,
        tokens_in_flight=64,
        room=GIB,
    ).choose(256)
    full, states = groups
    window = attrs.evolve(full, kind="window", window=40, unit_bytes=32)
    latent = attrs.evolve(full, unit_bytes=640)
    assert [g.bytes_per_token for g in (full, window, latent, states)] == [0, 0, 40, 0]
    assert [g.blocks_of(1000) for g in (full, window, latent, states)] == [63, 4, 63, 0], (
        "four hold a window at most, and a state has a slot"
    )
    assert describe(groups) == "5 states and 16 snapshots, 8.0 KiB each"


def use_of(tensors: dict[str, CacheTensor], layers: int) -> StateUse:
    spec = StateSpec(tensors=tensors)
    return StateUse(spec=spec, layers=tuple(range(layers)), cache=spec.resolved("bfloat16"))


def test_a_mamba_2_of_2_7b_takes_a_slot_per_row_and_a_few_snapshots() -> None:
    use = use_of(
        {
            "conv": CacheTensor((3, 5376), "compute"),
            "state": CacheTensor((80, 64, 128), "float32"),
        },
        layers=64,
    )
    sizes = CacheSizes([], [use], 64, max_num_seqs=64, tokens_in_flight=2048, room=50 * GIB)
    full, states = sizes.choose(1 << 17)
    assert full.nbytes == 0 and full.num_blocks == 64 * (1 << 17) // 64
    assert (states.num_slots, states.num_snapshots) == (65, 4)
    assert states.nbytes / GIB == pytest.approx(10.9, abs=0.05)
    assert sizes.state_bytes() == 65 * states.unit_bytes, (
        "a plan that fits has the trial's slot too"
    )


def test_states_that_do_not_fit_are_refused_with_a_remedy(checkpoint: str) -> None:
    plan = resolve(checkpoint, on_cpu(), catalog_with_toy())
    fixed = sum(item.nbytes for item in plan.memory if item.name != "KV cache")
    options = on_cpu(memory=f"{fixed + 1024}B")
    with pytest.raises(OutOfMemoryError, match="states of 4 sequences") as error:
        resolve(checkpoint, options, catalog_with_toy())
    assert "--max-num-seqs" in error.value.remedy


def test_a_model_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither attention layers nor recurrent states"):
        resolve(write_toy(tmp_path / "empty", []), on_cpu(), catalog_with_toy())


def test_a_layer_keeps_what_its_config_promised(tmp_path: Path) -> None:
    catalog = catalog_with_toy()
    opened = open_model(write_toy(tmp_path / "toy", LAYERS["beside attention"]), on_cpu(), catalog)
    plan = opened.plan
    assert isinstance(ToyConfig.from_json(plan.config).cache_specs()[1], AttentionSpec)
    assert [use.layers for use in plan.states] == [(0, 2, 3)]
    with pytest.raises(AssertionError, match="a state has sum, conv"):
        model = load_model(opened)
        model.layers[0].state.store(None, sum=torch.zeros(1))  # type: ignore[union-attr,index]


# --- recorded steps -------------------------------------------------------------------------------


def native_engine(ref: str) -> Engine:
    """With kernels that record steps, where they are installed."""
    catalog = catalog_with_toy(load_catalog())
    return Engine.load(open_model(ref, on_cpu(dtype="bfloat16", block_size=16), catalog))


def test_recurrent_layers_are_recorded_and_trials_do_not_move_the_states(checkpoint: str) -> None:
    """The first decode step of a shape is computed more than once."""
    pytest.importorskip("inferno_cpu._native", reason="the native kernels are not compiled here")

    def tokens(engine: Engine) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=30)
        engine.submit(Request(id="a", token_ids=(1, 2, 3, 4, 5), params=params))
        return [output.token_id or 0 for _ in range(30) for output in engine.step()]

    tried, plain = native_engine(checkpoint), native_engine(checkpoint)
    plain._runner.replays = None  # type: ignore[attr-defined]
    assert tokens(tried) == tokens(plain)
    replays = tried._runner.replays  # type: ignore[attr-defined]
    assert replays is not None and replays.shapes == {(1, 8)}


def test_a_recorded_step_moves_each_state_once() -> None:
    """What a provider's operators write to the slots that the batch names."""
    seen = torch.zeros(4, dtype=torch.int64).numpy()
    done: list[Batch] = []

    class Recorded:
        def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
            self.output = compute()

        def replay(self) -> None:
            self.output.copy_(compute(done[-1]))

    def compute(batch: Batch, last_L: torch.Tensor | None = None, /) -> torch.Tensor:
        done.append(batch)
        assert batch.state_slots_S is not None
        for slot in batch.state_slots_S.numpy():
            seen[slot] += 1
        return batch.token_ids_T[:, None].clone()

    use = CaptureUse(name="recorded", sizes=(1, 2, 3), blocks=(4,))
    replays = Replays(compute, Recorded, use, InputSpec(16, 64, trial_slot=3))
    tables = Tables(3, 64, 16)
    new = NewSequence(2, Request(id="a", token_ids=(7,)), (7,))
    tables.update(Step((), (new,), (BlockUpdate(0, 2, 0, 5),)))
    arrays = tables.lay_out(Step((Slice(2, 0, 1, True),)))
    with torch.inference_mode():
        for _ in range(3):
            logits_TV = replays.run(arrays)
            assert logits_TV is not None and logits_TV.tolist() == [[7]]
    assert seen.tolist() == [0, 0, 3, 2], "the slot of trials is behind the rows'"
