"""Models whose every kernel is this plugin's, interpreted, give torch's greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("triton", reason="triton is not installed")

from triton_on_cpu import catalog, on_cpu

from inferno.testing import TOY_MOE_SIZES, Toy, load_toy, random_tensors, torch_only
from inferno_triton.tiles import CHIPS, Product

PROMPTS = [[5 * i % 150 + 10 for i in range(length)] for length in (19, 3)]
WIDE = attrs.evolve(
    CHIPS["sm_90"],
    products={most: Product(256, most, 4, 1) for most in (16, 64)},
    grouped={64: Product(64, 64, 4, 1, columns=64)},
)
"""Few programs, as the interpreter takes a time for each."""
QWEN3_MOE = {**TOY_MOE_SIZES, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}


def assert_torchs_tokens(path: str | Path, tokens: int, **options: Any) -> Toy:
    """Through the engine: prompts in chunks, then single tokens."""
    options["max_num_batched_tokens"] = 16
    exact = {key: value for key, value in options.items() if key != "kv_cache_dtype"}
    theirs = load_toy(path, torch_only(), **exact, attention_backend="torch")
    expected = [each.token_ids for each in theirs.generate(PROMPTS, tokens)]
    with on_cpu(WIDE):
        ours = load_toy(path, catalog(), **options, attention_backend="triton")
        assert {use.name for use in ours.plan.attention} == {"triton"}
        assert {use.name for use in ours.plan.kernels} == {"triton"}
        assert [each.token_ids for each in ours.generate(PROMPTS, tokens)] == expected
    return ours


@pytest.mark.slow
def test_the_demo_model_with_a_cache_of_8_bits() -> None:
    pytest.importorskip("inferno_demo")
    assert_torchs_tokens("demo", 4, kv_cache_dtype="int8")


@pytest.mark.slow
def test_the_demo_model_in_k_quants() -> None:
    pytest.importorskip("inferno_demo")
    pytest.importorskip("inferno_gguf")
    isq = "model.layers.0.*=q4_k,model.layers.2.*=q6_k"
    ours = assert_torchs_tokens("demo", 3, isq=isq, dtype="bfloat16")
    assert {"q4_k", "q6_k"} <= {use.layout for use in ours.plan.kernels}


@pytest.mark.slow
def test_routed_experts(tmp_path: Path) -> None:
    pytest.importorskip("inferno_qwen3_moe")
    random_tensors(QWEN3_MOE, tmp_path)
    ours = assert_torchs_tokens(tmp_path, 4)
    assert {"route", "dispatch", "combine", "grouped"} <= {use.op for use in ours.plan.kernels}
