"""W8A8: activations are rounded as a checkpoint declares, by torch and by kernels.

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
from safetensors.torch import load_file
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.nn import W8A8, Weight, Wrapper
from inferno.testing import (
    TOY_SIZES,
    Encoded,
    assert_kernels,
    generate,
    load_toy,
    ragged_prompts,
    stored_matrix,
    torch_only,
    write_twins,
)
from inferno_compressed_tensors import holds, refuses
from inferno_compressed_tensors.rounding import RoundedInputs, Rounding
from inferno_compressed_tensors.weight import load

LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
VECTORS = load_file(Path(__file__).with_name("activations.safetensors"))
ONES = torch.ones(1 << 10, 1)
CASES = [("token", True, False), ("token", True, True), ("tensor", False, False)]
CASES += [("tensor", False, True)]


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


def rounded(parts: Mapping[str, Tensor], x_TI: Tensor, case: tuple[str, bool, bool]) -> Tensor:
    """What the scheme multiplies."""
    strategy, dynamic, symmetric = case
    if strategy == "token" and symmetric:  # with 127 steps instead of 127.5
        step = x_TI.abs().amax(1, keepdim=True) / 127
        return (x_TI / step).round() * step
    if dynamic:
        step, zero = steps(x_TI, symmetric=symmetric)
    else:
        step, zero = parts["input_scale"], parts.get("input_zero_point", torch.zeros(1)).float()
    return ((x_TI / step + zero).round().clamp(-128, 127) - zero) * step


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
    parts = encode(weight_OI, x_TI[:2], symmetric=symmetric, static=not dynamic)
    stored = stored_matrix(parts, config(strategy, dynamic=dynamic, symmetric=symmetric))
    assert refuses(stored) is None
    assert holds(stored, "float32").layout == "w8a8_sym", "kernels know it"
    values_OI = parts["weight"].float() * parts["weight_scale"].float()
    wanted_TO = rounded(parts, x_TI, case) @ values_OI.T
    weight, bias_O = load(stored, parts, dtype="float32"), torch.randn(rows)
    assert weight.shape == (rows, columns)
    torch.testing.assert_close(weight.rows(torch.arange(rows)), values_OI)
    # A tie may be rounded either way, if the step differs in its last bit.
    step = float(x_TI.abs().amax() / 100 * values_OI.abs().amax()) if dynamic else 0.0
    torch.testing.assert_close(weight.matmul(x_TI), wanted_TO, rtol=1e-4, atol=1e-4 + step)
    torch.testing.assert_close(
        weight.matmul(x_TI.bfloat16(), bias_O.bfloat16()).float(),
        weight.matmul(x_TI.bfloat16().float(), bias_O.bfloat16().float()),
        rtol=1e-2,
        atol=1e-2,
    )


@pytest.mark.parametrize("case", [each for each in CASES if each[0] == "tensor" or not each[2]])
def test_activations_are_those_of_the_librarys_forward_pass(case: tuple[str, bool, bool]) -> None:
    strategy, dynamic, symmetric = case
    name = f"{strategy}_{dynamic:d}_{symmetric:d}."
    vectors = {k.removeprefix(name): v for k, v in VECTORS.items() if k.startswith(name)}
    x_TI, wanted_TI = vectors.pop("x"), vectors.pop("rounded")
    size = x_TI.shape[1]
    parts = {**vectors, "weight": torch.eye(size, dtype=torch.int8), "weight_scale": ONES[:size]}
    stored = stored_matrix(parts, config(strategy, dynamic=dynamic, symmetric=symmetric))
    weight = load(stored, parts, dtype="float32")
    assert isinstance(weight, RoundedInputs)
    torch.testing.assert_close(weight.matmul(x_TI), wanted_TI, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(wanted_TI, x_TI, rtol=1e-3), "rounding can be seen"


class Kernel(Weight):
    """Multiplies as kernels of `w8a8` do: each token is rounded to -127 .. 127."""

    def __init__(self, inner: W8A8) -> None:
        super().__init__()
        self.shape, self.layout, self.inner = inner.shape, inner.layout, inner

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.inner.matmul(x_TI, bias_O)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.inner.grouped(x_NI, starts_E1, bias_O)


ROUNDINGS = [Rounding(None), Rounding(0.03, 20.0), Rounding(0.002), Rounding(0.5, -128.0)]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("tokens", [7, 20])
def test_kernels_multiply_the_same_integers(rounding: Rounding, zeros: bool, tokens: int) -> None:
    """Those beyond 127 too: magnitudes up to 255 occur."""
    codes_OI = torch.randint(0, 256, (12, 64), dtype=torch.uint8)
    zeros_O1 = torch.randint(0, 256, (12, 1)).float() if zeros else None
    plain = W8A8(codes_OI, torch.rand(12, 1), zeros_O1, torch.float32)
    inner, x_TI = RoundedInputs.of(plain, rounding).inner, torch.randn(tokens, 64)
    x_TI[1], x_TI[2] = x_TI[1].abs(), 0.0
    x_TI[3, 5] = torch.inf
    assert isinstance(inner, W8A8)
    by_torch, by_kernel = (RoundedInputs(each, rounding) for each in (inner, Kernel(inner)))
    q_TI, scales_T1 = rounding.apply(x_TI)
    integers_OI = codes_OI.double() - (128 if zeros_O1 is None else zeros_O1.double())
    exact_TO = q_TI.double() @ integers_OI.T * scales_T1 * plain.scales[:, 0]
    bias_O, starts_E1 = torch.randn(12), torch.tensor([0, 4, 4, tokens], dtype=torch.int32)
    matrices = integers_OI.view(3, 4, 64) * plain.scales.view(3, 4, 1)
    grouped_NO = torch.cat([q_TI[:4].double() @ matrices[0].T, q_TI[4:].double() @ matrices[2].T])
    for weight in (by_torch, by_kernel):
        y_TO = weight.matmul(x_TI, bias_O)
        assert y_TO[3].isnan().all() and torch.equal(y_TO[2], bias_O)
        close: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-3, "equal_nan": True}
        torch.testing.assert_close(y_TO.double(), exact_TO + bias_O, **close)
        y_NO = weight.grouped(x_TI, starts_E1)
        torch.testing.assert_close(y_NO.double(), grouped_NO * scales_T1, **close)


def test_only_matrices_with_the_same_rounding_are_stacked() -> None:
    def matrix(scale: float) -> RoundedInputs:
        codes_OI = torch.randint(0, 256, (4, 32), dtype=torch.uint8)
        plain = W8A8(codes_OI, torch.rand(4, 1), None, torch.float32)
        return RoundedInputs.of(plain, Rounding(scale))

    one, other, x_TI = matrix(0.1), matrix(0.1), torch.randn(3, 32)
    both = one.concatenate([other])
    assert isinstance(both, Wrapper) and both.shape == (8, 32)
    assert torch.equal(both.matmul(x_TI), torch.cat([one.matmul(x_TI), other.matmul(x_TI)], -1))
    assert one.concatenate([matrix(0.2)]) is None


@pytest.mark.parametrize("part", ["input_scale", "input_zero_point"])
def test_a_static_scale_that_is_not_stored_is_refused(part: str) -> None:
    parts = encode(torch.randn(4, 32), torch.randn(2, 32), symmetric=False, static=True)
    del parts[part]
    stored = stored_matrix(parts, config("tensor", dynamic=False, symmetric=False))
    assert f"{part} is missing" in str(refuses(stored))


def test_a_scale_of_the_whole_batch_is_not_used() -> None:
    """A token's product would depend on its company."""
    parts = encode(torch.randn(4, 32), torch.randn(2, 32), symmetric=True, static=False)
    stored = stored_matrix(parts, config("tensor", dynamic=True, symmetric=True))
    assert holds(stored, "float32").layout == "int8_sym_g32"


@pytest.mark.parametrize("scale", [0.0, float("nan"), -1.0])
def test_a_static_scale_that_is_no_scale_is_an_error(scale: float) -> None:
    parts = encode(torch.randn(4, 32), torch.randn(2, 32), symmetric=True, static=True)
    parts["input_scale"] = torch.tensor([scale])
    stored = stored_matrix(parts, config("tensor", dynamic=False, symmetric=True))
    with pytest.raises(CheckpointError, match="activations have the scale"):
        load(stored, parts, dtype="float32")


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_a_checkpoint_as_torch_does(
    case: tuple[str, bool, bool], tmp_path: Path
) -> None:
    """One with a calibrated scale is far from a dense model; others are near."""
    pytest.importorskip("inferno_llama")
    strategy, dynamic, symmetric = case

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        if not name.endswith("proj.weight"):
            return None
        x_TI = torch.randn(4, tensor.shape[1], generator=torch.Generator().manual_seed(0))
        parts = encode(tensor, x_TI, symmetric=symmetric, static=not dynamic)
        return parts, parts["weight"].float() * parts["weight_scale"].float()

    quant_config = config(strategy, dynamic=dynamic, symmetric=symmetric)
    packed, plain = write_twins(tmp_path, LLAMA, quant_config, stored)
    if dynamic:
        assert_kernels((packed, plain), "w8a8_sym")
    prompts = ragged_prompts(TOY_SIZES["vocab_size"])
    by_kernels = generate(load_toy(packed), prompts, 1)
    by_torch = generate(load_toy(packed, torch_only()), prompts, 1)
    for ours, theirs in zip(by_kernels, by_torch, strict=True):
        error = (ours.logits_NV - theirs.logits_NV).norm() / theirs.logits_NV.norm()
        assert error < 0.05, "a value between two integers may be rounded otherwise"
