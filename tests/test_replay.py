"""Recorded steps give what computed steps give, whatever comes and goes between them."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from inferno.batch import Batch
from inferno.cache import KVCache
from inferno.engine.core import Engine
from inferno.plan import Options, resolve
from inferno.replay import Replays
from inferno.testing import randomize
from inferno.types import Request, SamplingParams

pytest.importorskip("inferno_cpu._native", reason="the native kernels are not compiled here")

ARRIVALS = {0: (0,), 3: (1,), 9: (2, 3), 20: (4,), 30: (5, 6, 7)}
"""Step -> requests that come then: between 1 and 7 run at once."""


UNTIED: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "attention_bias": True,
}  # fmt: skip


WINDOWED: dict[str, Any] = {
    **UNTIED, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "sliding_window": 40,
    "max_window_layers": 1,
}  # fmt: skip


@pytest.fixture(scope="module", params=["demo", "untied, with biases", "windowed"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    ref = request.param
    if ref != "demo":
        config = WINDOWED if ref == "windowed" else UNTIED
        fields = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
        made = transformers.AutoConfig.for_model(config["model_type"], **fields)
        model = transformers.AutoModelForCausalLM.from_config(made)
        randomize(model)
        ref = tmp_path_factory.mktemp(config["model_type"])
        model.save_pretrained(ref)
        (ref / "config.json").write_text(json.dumps(config))
    plan = resolve(str(ref), Options(device="cpu", dtype="bfloat16", max_model_len=512, max_num_batched_tokens=256))
    assert bool(plan.window_blocks) == (request.param == "windowed")
    return Engine.load(plan)


def tokens(engine: Engine) -> dict[str, list[int]]:
    """What eight requests of different lengths get."""
    found: dict[str, list[int]] = defaultdict(list)
    for step in range(400):
        for i in ARRIVALS.get(step, ()):
            prompt = tuple(100 + (7 * i + 3 * j) % 900 for j in range(1 + 40 * i % 150))
            engine.submit(Request(id=str(i), token_ids=prompt, params=SamplingParams(temperature=0, max_tokens=40 + 30 * i)))
        for token in engine.step():
            found[token.request_id].append(token.id)
    assert not engine.busy
    return found


def test_replayed_and_computed_steps_agree(engine: Engine) -> None:
    runner = engine._runner
    replayed = tokens(engine)
    assert runner._replays is not None and any(runner._replays._shapes.values()), "steps were recorded"
    runner._replays = None
    assert tokens(engine) == replayed


def test_long_contexts_are_recorded_too() -> None:
    """Rotary tables grow with the context: not within a recorded step."""
    engine = Engine.load(resolve("demo", Options(device="cpu", dtype="bfloat16", max_model_len=2048)))
    prompt = tuple(100 + 3 * j % 900 for j in range(1022))
    engine.submit(Request(id="a", token_ids=prompt, params=SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)))
    while engine.busy:
        engine.step()
    replays = engine._runner._replays
    assert replays is not None
    assert {key: shape is not None for key, shape in replays._shapes.items()} == {(1, 64): True, (1, 128): True}


def test_a_foreign_operator_is_never_left_out() -> None:
    """A step that torch touches is computed, each time."""
    calls: list[int] = []

    class Recorded:
        def __enter__(self) -> Recorded:
            return self

        def __exit__(self, *exception: object) -> None: ...

        def replay(self) -> None:
            raise AssertionError("it was not to be recorded")

    def compute(batch: Batch) -> Tensor:
        calls.append(1)
        return batch.token_ids_T[:, None] * torch.ones(5)

    replays = Replays(compute, Recorded, KVCache(()), block_size=16, max_model_len=64)
    for _ in range(2):
        one = torch.zeros(1, dtype=torch.int64).numpy()
        assert replays.run(one, one, one, [1], one[:, None]) is None
    assert len(calls) == 1, "it is tried once"
