"""W8A8: however a checkpoint declares that activations are rounded, products differ from those of
the declared rounding by no more than its steps. inferno rounds each token as declared, if it is
symmetric, else finer or not at all.

Suffixes: O rows, I columns, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferno.testing import (
    TOY_SIZES,
    Encoded,
    assert_kernels,
    assert_near,
    assert_same_tokens,
    stored_matrix,
    torch_only,
    write_twins,
)
from inferno_compressed_tensors import holds, refuses
from inferno_compressed_tensors.weight import load

LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
CASES = [("token", True, False), ("token", True, True), ("tensor", False, False)]
CASES += [("tensor", False, True), ("tensor", True, True)]


def config(strategy: str, *, dynamic: bool, symmetric: bool) -> dict[str, Any]:
    activations = {"num_bits": 8, "type": "int", "strategy": strategy, "dynamic": dynamic}
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": {**activations, "symmetric": symmetric},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def encode(weight_OI: Tensor, x_TI: Tensor, *, symmetric: bool, static: bool) -> dict[str, Tensor]:
    """The parts of a matrix; with `static`, the rounding that these activations need."""
    scale_O1 = (weight_OI.abs().amax(1, keepdim=True) / 127).half()
    codes_OI = (weight_OI / scale_O1.float()).round().clamp(-128, 127)
    parts = {"weight": codes_OI.to(torch.int8), "weight_scale": scale_O1}
    if static:
        step, zero = steps(x_TI.flatten()[None], symmetric=symmetric)
        parts["input_scale"] = step.flatten()
        if not symmetric:
            parts["input_zero_point"] = zero.flatten().to(torch.int8)
    return parts


def steps(x_TI: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scale and zero point of each row, as `calculate_qparams` of compressed-tensors."""
    low, high = x_TI.amin(1, keepdim=True).clamp(max=0), x_TI.amax(1, keepdim=True).clamp(min=0)
    if symmetric:
        return torch.maximum(-low, high) / 127.5 + 1e-9, torch.zeros_like(low)
    step = (high - low) / 255 + 1e-9
    return step, (-128 - low / step).round().clamp(-128, 127)


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(CASES),
    rows=st.integers(1, 9),
    columns=st.sampled_from([32, 96, 128]),
    offset=st.floats(-3, 3),
    seed=st.integers(0, 1000),
)
def test_products_are_those_of_the_declared_rounding(
    case: tuple[str, bool, bool], rows: int, columns: int, offset: float, seed: int
) -> None:
    strategy, dynamic, symmetric = case
    torch.manual_seed(seed)
    weight_OI, x_TI = torch.randn(rows, columns), torch.randn(5, columns) + offset
    parts = encode(weight_OI, x_TI, symmetric=symmetric, static=not dynamic)
    stored = stored_matrix(parts, config(strategy, dynamic=dynamic, symmetric=symmetric))
    assert refuses(stored) is None
    found, by_token = holds(stored, "float32").layout, strategy == "token" and symmetric
    assert found == "w8a8_sym" if by_token else found.startswith("int8_sym_g"), "kernels know it"
    if dynamic:
        step, zero = steps(x_TI, symmetric=symmetric)
    else:
        step, zero = parts["input_scale"], parts.get("input_zero_point", torch.zeros(1)).float()
    rounded_TI = ((x_TI / step + zero).round().clamp(-128, 127) - zero) * step
    values_OI = parts["weight"].float() * parts["weight_scale"].float()
    y_TO = load(stored, parts, dtype="float32").matmul(x_TI)
    if by_token:  # with 127 steps instead of 127.5
        most_T1 = x_TI.abs().amax(1, keepdim=True)
        exact_TO = ((x_TI * (127 / most_T1)).round() * (most_T1 / 127)) @ values_OI.T
        torch.testing.assert_close(y_TO, exact_TO, rtol=1e-4, atol=1e-4)
    error_TO = y_TO - rounded_TI @ values_OI.T
    assert (error_TO.abs() <= step * values_OI.abs().sum(1) * 1.001 + 1e-4).all()


@pytest.mark.parametrize(("strategy", "dynamic", "symmetric"), CASES)
def test_a_checkpoint_gives_the_tokens_of_its_dense_twin(
    strategy: str, dynamic: bool, symmetric: bool, tmp_path: Path
) -> None:
    pytest.importorskip("inferno_llama")

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        if not name.endswith("proj.weight"):
            return None
        x_TI = torch.randn(4, tensor.shape[1], generator=torch.Generator().manual_seed(number))
        parts: Mapping[str, Tensor] = encode(tensor, x_TI, symmetric=symmetric, static=not dynamic)
        return parts, parts["weight"].float() * parts["weight_scale"].float()

    own = config(strategy, dynamic=dynamic, symmetric=symmetric)
    twins = write_twins(tmp_path, LLAMA, own, stored)
    if not (strategy == "token" and symmetric):
        assert_same_tokens(twins, torch_only())
    else:
        assert_kernels(twins, "w8a8_sym")
    assert_near(twins)
