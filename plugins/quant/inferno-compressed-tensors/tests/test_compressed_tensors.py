"""Values are those of the stored integers and floats; models give the tokens of their dense
twins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_toys import FORMATS, LLAMA, QWEN3_MOE, config, encode, toy_checkpoints
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import (
    QuantSchemeTests,
    alike,
    assert_near,
    assert_same_tokens,
    plan_of,
    stored_matrix,
    torch_only,
)
from inferno_compressed_tensors import holds, refuses
from inferno_compressed_tensors.weight import load

VECTORS = load_file(Path(__file__).with_name("vectors.safetensors"))


@pytest.mark.parametrize("name", sorted({name.partition(".")[0] for name in VECTORS}))
def test_values_are_those_of_the_library(name: str) -> None:
    parts = {n.partition(".")[2]: t for n, t in VECTORS.items() if n.partition(".")[0] == name}
    bits, group, symmetric = (int(number) for number in name.split("_"))
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group}
    whole = config("int4-group")
    whole["config_groups"]["group_0"]["weights"] = {**weights, "symmetric": symmetric == 1}
    values_OI = parts.pop("values")
    weight = load(stored_matrix(parts, whole), parts, dtype="float32")
    assert torch.equal(weight.rows(torch.arange(len(values_OI))), values_OI)


class FormatTests(QuantSchemeTests):
    shapes = ((64, 256), (16, 192))
    kind: str

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return encode(torch.randn(rows, columns, generator=generator), self.kind)[0]

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return decoded(parts, self.kind)


def decoded(parts: Mapping[str, Tensor], kind: str) -> Tensor:
    """The values of parts, code by code."""
    form, scale = FORMATS[kind], parts["weight_scale"].double()
    if "weight_packed" not in parts:
        q_OI, zeros = parts["weight"].double(), parts.get("weight_zero_point", torch.zeros(1))
        if form["strategy"] == "block":
            of_O, of_I = (torch.arange(size) // 32 for size in q_OI.shape)
            return (q_OI * scale[of_O[:, None], of_I]).float()
        return (scale * (q_OI - zeros.double())).float()
    bits, half = form["num_bits"], 1 << form["num_bits"] - 1

    def codes(words: Tensor) -> np.ndarray:
        data = np.ascontiguousarray(words.numpy()).view(np.uint8)
        each = np.unpackbits(data, axis=1, bitorder="little").reshape(len(data), -1, bits)
        numbers: np.ndarray = each @ (1 << np.arange(bits)) - half
        return numbers

    q_OI = torch.from_numpy(codes(parts["weight_packed"])).double()
    rows, columns = q_OI.shape
    zeros_OG = torch.zeros(rows, scale.shape[1]).double()
    if "weight_zero_point" in parts:
        zeros_OG = torch.from_numpy(codes(parts["weight_zero_point"].T).T[:rows]).double()
    group_I = torch.arange(columns) // (columns // scale.shape[1])
    if "weight_g_idx" in parts:
        group_I = parts["weight_g_idx"].long()
    return (scale[:, group_I] * (q_OI - zeros_OG[:, group_I])).float()


globals().update(
    {
        f"Test_{kind.replace('-', '_')}": type(
            f"Test_{kind.replace('-', '_')}",
            (FormatTests,),
            {"scheme": "compressed-tensors", "kind": kind, "quant_config": config(kind)},
        )
        for kind in FORMATS
    }
)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([*FORMATS]),
    rows=st.integers(1, 40),
    columns=st.integers(1, 4),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_unpacking_is_bit_exact(
    kind: str, rows: int, columns: int, dtype: torch.dtype, seed: int
) -> None:
    weight_OI = torch.randn(rows, columns * 64, generator=torch.Generator().manual_seed(seed))
    parts, values_OI = encode(weight_OI, kind, seed, dtype)
    stored = stored_matrix(parts, config(kind))
    assert refuses(stored) is None
    weight = load(stored, parts, dtype="float32")
    assert torch.equal(weight.rows(torch.arange(rows)), values_OI)
    planned = holds(stored, "float32")
    assert (planned.layout, planned.shape) == (weight.layout, weight.shape)


def test_a_shape_that_is_stored_and_is_not_that_of_the_codes_is_an_error() -> None:
    parts, _ = encode(torch.randn(32, 64), "int4-group")
    parts["weight_shape"] = torch.tensor([32, 60])
    with pytest.raises(CheckpointError, match="weight_shape"):
        load(stored_matrix(parts, config("int4-group")), parts, dtype="float32")


@alike
@pytest.mark.parametrize("model_config", [LLAMA, QWEN3_MOE], ids=["llama", "qwen3-moe"])
@pytest.mark.parametrize("kind", ["int4-group", "int4-ordered", "w8a8", "fp8-rows"])
def test_a_checkpoint_gives_the_tokens_of_its_dense_twin(
    model_config: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    pytest.importorskip(f"inferno_{model_config['model_type']}")
    assert_same_tokens(toy_checkpoints(tmp_path, model_config, kind), torch_only())


@pytest.mark.parametrize("kind", ["int4-zeros", "int4-ordered", "w8a8"])
def test_kernels_compute_it(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("inferno_qwen3_moe")
    # All experts: which ones are selected may depend on the rounding of activations.
    model_config = {**QWEN3_MOE, "num_experts_per_tok": 6}
    packed_path, plain = toy_checkpoints(tmp_path, model_config, kind)
    plan = plan_of(packed_path)
    if any("no native kernels" in note for note in plan.notes):
        pytest.skip("no kernels here")
    assert not any("slowly" in note for note in plan.notes)
    assert_near((packed_path, plain))
