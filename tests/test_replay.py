"""Recorded steps give what computed steps give, whatever comes and goes between them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner, Tables
from inferno.core.runner.replay import Arena, Replays
from inferno.core.sampling_params import SamplingParams
from inferno.core.types import Request, Slice, Step
from inferno.nn import Router
from inferno.nn.batch import Batch
from inferno.plan import Options, open_model
from inferno.testing import randomize

pytest.importorskip("inferno_cpu._native", reason="the native kernels are not compiled here")

ARRIVALS = {0: (0,), 3: (1,), 9: (2, 3), 20: (4,), 30: (5, 6, 7)}
"""Step -> requests that come then: between 1 and 7 run at once."""


UNTIED: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": True,
}


WINDOWED: dict[str, Any] = {
    **UNTIED,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "use_sliding_window": True,
    "sliding_window": 40,
    "max_window_layers": 1,
}


EXPERTS: dict[str, Any] = {
    **UNTIED,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "attention_bias": False,
}


def made(config: dict[str, Any], folder: Path) -> Path:
    """A checkpoint of random weights."""
    fields = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **fields)
    )
    randomize(model)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(ref: str | Path, isq: str | None = None) -> Engine:
    options = Options(
        device="cpu", dtype="bfloat16", max_model_len=512, max_num_batched_tokens=256, isq=isq
    )
    return Engine.load(open_model(str(ref), options))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(EXPERTS, tmp_path_factory.mktemp("experts"))


@pytest.fixture(
    scope="module", params=["demo", "untied, with biases", "windowed", "experts", "packed experts"]
)
def engine(
    request: pytest.FixtureRequest, experts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Engine:
    match request.param:
        case "demo":
            engine = load("demo")
        case "experts":
            engine = load(experts)
        case "packed experts":
            engine = load(experts, isq="q8_0")
        case name:
            engine = load(
                made(WINDOWED if name == "windowed" else UNTIED, tmp_path_factory.mktemp("toy"))
            )
    assert (len(engine.plan.groups) > 1) == (request.param == "windowed")
    return engine


def runner_of(engine: Engine) -> ModelRunner:
    assert isinstance(engine._runner, ModelRunner)
    return engine._runner


def tokens(engine: Engine) -> dict[str, list[int]]:
    """What eight requests of different lengths get."""
    found: dict[str, list[int]] = defaultdict(list)
    for step in range(400):
        for i in ARRIVALS.get(step, ()):
            prompt = tuple(100 + (7 * i + 3 * j) % 900 for j in range(1 + 40 * i % 150))
            engine.submit(
                Request(
                    id=str(i),
                    token_ids=prompt,
                    params=SamplingParams(temperature=0, max_tokens=40 + 30 * i),
                )
            )
        for token in engine.step():
            assert token.token_id is not None
            found[token.request_id].append(token.token_id)
    assert not engine.busy
    return found


def test_replayed_and_computed_steps_agree(engine: Engine) -> None:
    runner = runner_of(engine)
    replayed = tokens(engine)
    assert runner.replays is not None
    assert {count for count, _ in runner.replays.shapes} >= {1, 2, 4, 6}, "steps were recorded"
    runner.replays = None
    assert tokens(engine) == replayed


def test_a_choice_within_groups_is_not_recorded(experts: Path) -> None:
    """It is torch's: all steps are computed."""
    engine = load(experts)
    runner = runner_of(engine)
    for module in runner._model.modules():
        if isinstance(module, Router):
            module.routing = evolve(module.routing, num_groups=4, top_groups=2)
    found = tokens(engine)
    assert runner.replays is not None and not runner.replays.shapes and not runner.replays.possible
    runner.replays = None
    assert tokens(engine) == found


def test_an_aborted_request_for_prompt_logprobs_does_not_keep_others_from_being_replayed() -> None:
    engine = Engine.load(
        open_model(
            "demo",
            Options(device="cpu", dtype="bfloat16", max_num_seqs=4, max_num_batched_tokens=16),
        )
    )
    greedy = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    engine.submit(Request(id="stays", token_ids=(5, 6, 7), params=greedy))
    engine.submit(
        Request(id="goes", token_ids=tuple(range(1, 99)), params=evolve(greedy, prompt_logprobs=1))
    )
    engine.step()
    engine.abort("goes")
    while engine.busy:
        engine.step()
    replays = runner_of(engine).replays
    assert replays is not None and replays.shapes == {(1, 8)}


def test_long_contexts_are_recorded_too() -> None:
    """Rotary tables grow with the context: not within a recorded step."""
    engine = Engine.load(
        open_model("demo", Options(device="cpu", dtype="bfloat16", max_model_len=2048))
    )
    prompt = tuple(100 + 3 * j % 900 for j in range(1022))
    engine.submit(
        Request(
            id="a",
            token_ids=prompt,
            params=SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
        )
    )
    while engine.busy:
        engine.step()
    replays = runner_of(engine).replays
    assert replays is not None
    assert replays.shapes == {(1, 64), (1, 128)}


def cleared(x: Tensor) -> Tensor:
    """By an operator that returns nothing."""
    y = x.new_empty(3)
    torch._foreach_zero_([y])
    return y


@pytest.mark.parametrize("operator", [lambda x: x * torch.ones(5), lambda x: x.float(), cleared])
def test_a_foreign_operator_is_never_left_out(operator: Callable[[Tensor], Tensor]) -> None:
    """A step that torch touches is computed, each time, whether inference mode calls it a view or
    not."""
    calls: list[int] = []

    class Recorded:
        def __enter__(self) -> Recorded:
            return self

        def __exit__(self, *exception: object) -> None: ...

        def replay(self) -> None:
            raise AssertionError("it was not to be recorded")

    def compute(batch: Batch) -> Tensor:
        calls.append(1)
        return operator(batch.token_ids_T[:, None])

    replays = Replays(compute, Recorded, block_size=16, max_model_len=64)
    tables = Tables(1, 64, 16)
    step = Step((Slice(0, 0, 1, True),))
    for _ in range(2):
        with torch.inference_mode():
            assert replays.run(tables.lay_out(step)) is None
    assert len(calls) == 2, "it is tried once: with what is made on first use, and without"


def test_recordings_share_their_memory() -> None:
    """Sixteen sequences that end one after the other: as many shapes, and no more memory than the
    largest asks for."""
    engine = Engine.load(
        open_model("demo", Options(device="cpu", dtype="bfloat16", max_num_seqs=16))
    )
    replays = runner_of(engine).replays
    assert replays is not None
    for i in range(16):
        params = SamplingParams(temperature=0, max_tokens=4 + i, ignore_eos=True)
        engine.submit(Request(id=str(i), token_ids=(5, 6, 7), params=params))
    held = None
    while engine.busy:
        engine.step()
        if replays.shapes and held is None:
            held = replays.nbytes
    assert len(replays.shapes) == 16
    assert replays.nbytes == held


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3 * 2**20)), max_size=60))
def test_no_two_tensors_of_an_arena_overlap(changes: list[tuple[int, int]]) -> None:
    arena, live = Arena(), dict[int, Tensor]()
    for i, size in changes:
        live.pop(i, None)
        live[i] = arena.like(torch.empty(size // 2, dtype=torch.bfloat16)).fill_(i)
        assert live[i].data_ptr() % 64 == 0
    assert all(torch.equal(arena.borrowed(live[i]), torch.full_like(live[i], i)) for i in live)
    live.clear()
    whole = arena.like(torch.empty(2**20, dtype=torch.uint8))
    assert len(arena._free) <= len(arena._chunks), "what is free is one piece again"
    assert whole.numel() == 2**20


def test_a_step_is_not_recorded_beside_an_attention_backend_of_another_package() -> None:
    """What such a backend computes past torch's dispatcher would be skipped by a replay."""
    options = Options(device="cpu", dtype="bfloat16", max_model_len=512, attention_backend="torch")
    assert runner_of(Engine.load(open_model("demo", options))).replays is None
