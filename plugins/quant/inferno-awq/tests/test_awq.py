"""Unpacking is bit-exact in both layouts; models give the tokens of their dense twins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from inferno.contracts import TensorInfo
from inferno.testing import (
    TOY_MOE_SIZES,
    TOY_SIZES,
    Encoded,
    QuantSchemeTests,
    alike,
    assert_kernels,
    assert_refused,
    assert_same_tokens,
    change_quant_config,
    stored_matrix,
    torch_only,
    write_twins,
)
from inferno_awq import holds, refuses
from inferno_awq.weight import load

LLAMA = {
    **TOY_SIZES,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "tie_word_embeddings": True,
}
QWEN3_MOE = {
    **TOY_MOE_SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
}
VECTORS = load_file(Path(__file__).with_name("vectors.safetensors"))
GEMV = load_file(Path(__file__).with_name("gemv.safetensors"))
ORDERS = {"gemm": (0, 2, 4, 6, 1, 3, 5, 7), "gemv": (0, 1, 2, 3, 4, 5, 6, 7)}


def config(version: str = "gemm", group: int = 32) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": version,
        "modules_to_not_convert": ["lm_head"],
    }


def packed(codes: np.ndarray, order: tuple[int, ...], words: int | None = None) -> np.ndarray:
    """Words of codes along the last axis, by AutoAWQ's loop, padded to `words`."""
    needed = -(-codes.shape[1] // 8)
    result = np.zeros((len(codes), words or needed), np.uint32)
    for word in range(needed):
        for place, offset in enumerate(order):
            if word * 8 + offset < codes.shape[1]:
                code = codes[:, word * 8 + offset].astype(np.uint32)
                result[:, word] |= code << np.uint32(4 * place)
    return result.view(np.int32)


def encode(
    weight_OI: Tensor, version: str, group: int, dtype: torch.dtype = torch.float16
) -> tuple[dict[str, Tensor], Tensor]:
    """Round a matrix: its parts, and the values that these represent, in float32."""
    rows, columns = weight_OI.shape
    group = columns if group == -1 else group
    weight_OGi = weight_OI.double().numpy().reshape(rows, -1, group)
    low_OG, high_OG = weight_OGi.min(2), weight_OGi.max(2)
    scales = torch.from_numpy((high_OG - low_OG) / 15 + 1e-6).to(dtype)
    scales_OG1 = scales.double().numpy()[..., None]
    zeros_OG = np.rint(-low_OG / scales_OG1[..., 0]).clip(0, 15).astype(np.int64)
    codes_OGi = (np.rint(weight_OGi / scales_OG1) + zeros_OG[..., None]).clip(0, 15)
    values_OI = (scales_OG1 * (codes_OGi - zeros_OG[..., None])).reshape(rows, columns)
    codes_OI, order = codes_OGi.astype(np.int64).reshape(rows, columns), ORDERS[version]
    if version == "gemm":
        arrays = packed(codes_OI.T, order), packed(zeros_OG.T, order), scales.T.contiguous()
    else:
        each = {64: 2, 32: 4}.get(group, 1)
        words = (columns // group + 8 * each - 1) // (8 * each) * each
        padded = torch.zeros(rows, 8 * words, dtype=dtype)
        padded[:, : columns // group] = scales
        arrays = packed(codes_OI, order), packed(zeros_OG, order, words), padded
    qweight, qzeros, grid = arrays
    parts = {
        "qweight": torch.from_numpy(np.ascontiguousarray(qweight)),
        "qzeros": torch.from_numpy(np.ascontiguousarray(qzeros)),
        "scales": grid,
    }
    return parts, torch.from_numpy(values_OI).float()


def decode(parts: Mapping[str, Tensor], version: str, columns: int) -> Tensor:
    """The values of parts, code by code."""

    def codes(words: Tensor) -> np.ndarray:
        numbers = np.zeros((words.shape[0], words.shape[1] * 8), np.int64)
        for place, offset in enumerate(ORDERS[version]):
            numbers[:, offset::8] = (words.numpy().view(np.uint32) >> np.uint32(4 * place)) & 15
        return numbers

    codes_OI, zeros_OG = codes(parts["qweight"]), codes(parts["qzeros"])
    scales_OG = parts["scales"].double().numpy()
    if version == "gemm":
        codes_OI, zeros_OG, scales_OG = codes_OI.T, zeros_OG.T, scales_OG.T
    group_I = np.arange(codes_OI.shape[1]) // columns
    return torch.from_numpy(scales_OG[:, group_I] * (codes_OI - zeros_OG[:, group_I])).float()


class AwqTests(QuantSchemeTests):
    shapes = ((64, 256), (16, 512))
    version = "gemm"

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return encode(torch.randn(rows, columns, generator=generator), self.version, 64)[0]

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return decode(parts, self.version, 64)


class TestGemm(AwqTests):
    scheme = "awq"
    quant_config = config("gemm", 64)


class TestGemv(AwqTests):
    scheme = "awq"
    quant_config = config("gemv", 64)
    version = "gemv"


@settings(max_examples=40, deadline=None)
@given(
    version=st.sampled_from(["gemm", "gemv"]),
    group=st.sampled_from([32, 64, 128, -1]),
    rows=st.integers(1, 5),
    groups=st.integers(1, 10),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_unpacking_is_bit_exact(
    version: str, group: int, rows: int, groups: int, dtype: torch.dtype, seed: int
) -> None:
    shape = (rows * 8, groups * (32 if group == -1 else group))
    weight_OI = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    parts, values_OI = encode(weight_OI, version, group, dtype)
    stored = stored_matrix(parts, config(version, group))
    assert refuses(stored) is None
    weight = load(stored, parts, dtype="float32")
    assert torch.equal(weight.rows(torch.arange(shape[0])), values_OI)
    planned = holds(stored, "float32")
    assert (
        (planned.layout, planned.shape)
        == (weight.layout, weight.shape)
        == (
            planned.layout,
            shape,
        )
    )


@pytest.mark.parametrize("name", sorted({name.partition(".")[0] for name in VECTORS}))
def test_values_are_those_that_gptqmodel_unpacks(name: str) -> None:
    parts = {n.partition(".")[2]: t for n, t in VECTORS.items() if n.partition(".")[0] == name}
    version, group, _ = name.split("_")
    values_OI = parts.pop("values")
    weight = load(stored_matrix(parts, config(version, int(group))), parts, dtype="float32")
    # It multiplies in float16.
    assert torch.equal(weight.rows(torch.arange(len(values_OI))).half().float(), values_OI)


@pytest.mark.parametrize("name", sorted({name.partition(".")[0] for name in GEMV}))
def test_values_are_those_that_autoawq_packs_for_its_second_layout(name: str) -> None:
    parts = {n.partition(".")[2]: t for n, t in GEMV.items() if n.partition(".")[0] == name}
    version, group, _ = name.split("_")
    values_OI = parts.pop("values")
    weight = load(stored_matrix(parts, config(version, int(group))), parts, dtype="float32")
    assert torch.equal(weight.rows(torch.arange(len(values_OI))), values_OI)


def test_configs_of_old_writers_are_read() -> None:
    parts, _ = encode(torch.randn(8, 64), "gemm", 64)
    old = {"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}
    assert refuses(stored_matrix(parts, old)) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": 8}, "4 bits"),
        ({"bits": None}, "4 bits"),
        ({"version": "gemv_fast"}, "gemv_fast"),
        ({"version": "gemv"}, "group_size"),
        ({"group_size": 48}, "group_size"),
        ({"group_size": 64}, "make them"),
        ({"group_size": [32]}, "group_size"),
        ({"quant_method": "gptq"}, "quant_method"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_named(
    change: Mapping[str, Any], said: str
) -> None:
    parts, _ = encode(torch.randn(8, 64), "gemm", 32)
    assert said in str(refuses(stored_matrix(parts, {**config(), **change})))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-300, 300) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(
    changes=st.dictionaries(st.sampled_from([*config()]), _JSON, max_size=4),
    shapes=st.dictionaries(
        st.sampled_from(["qweight", "qzeros", "scales"]),
        st.lists(st.integers(0, 300), max_size=3).map(tuple),
        max_size=2,
    ),
)
def test_any_config_and_headers_are_read_or_refused_with_a_sentence(
    changes: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    parts, _ = encode(torch.ones(8, 64), "gemm", 32)
    stored = stored_matrix(parts, {**config(), **changes})
    for part, shape in shapes.items():
        stored.parts[part] = TensorInfo(stored.parts[part].dtype, shape, 0)  # type: ignore[index]
    reason = refuses(stored)
    if reason is None:
        assert holds(stored, "float32").nbytes > 0
        return
    assert len(reason.split()) > 3


def toy_checkpoints(
    folder: Path, model_config: Mapping[str, Any], version: str
) -> tuple[Path, Path]:
    """Write a random model with all matrices but embedding, head and router in AWQ, and its twin
    with their values."""

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        return encode(tensor, version, 32) if name.endswith("proj.weight") else None

    return write_twins(folder, model_config, config(version), stored)


@alike
@pytest.mark.parametrize("model_config", [LLAMA, QWEN3_MOE], ids=["llama", "qwen3-moe"])
@pytest.mark.parametrize("version", ["gemm", "gemv"])
def test_a_checkpoint_gives_the_tokens_of_its_dense_twin(
    model_config: dict[str, Any], version: str, tmp_path: Path
) -> None:
    pytest.importorskip(f"inferno_{model_config['model_type']}")
    assert_same_tokens(toy_checkpoints(tmp_path, model_config, version), torch_only())


@pytest.mark.parametrize(
    "model_config",
    # All experts: which ones are selected may depend on the rounding of activations.
    [LLAMA, {**QWEN3_MOE, "num_experts_per_tok": 6}],
    ids=["llama", "qwen3-moe"],
)
def test_kernels_compute_it(model_config: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip(f"inferno_{model_config['model_type']}")
    assert_kernels(toy_checkpoints(tmp_path, model_config, "gemm"), "int4_g32")


def test_a_matrix_that_the_config_does_not_explain_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    pytest.importorskip("inferno_llama")
    packed, _ = toy_checkpoints(tmp_path, LLAMA, "gemm")
    change_quant_config(packed, lambda config: config.update(version="gemv_fast"))
    assert_refused(packed, "gemv_fast")
