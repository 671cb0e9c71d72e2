"""Unpacking is bit-exact; models give the tokens of their dense twins.

Suffixes: O rows, I columns, G groups of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marlin_vectors import CASES, ROWS, codes, scales
from safetensors.torch import load_file
from torch import Tensor

from inferno.contracts import StoredMatrix, TensorInfo
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
from inferno_marlin import holds, refuses
from inferno_marlin.weight import load

SIZES = {"hidden_size": 128, "intermediate_size": 256, "tie_word_embeddings": True}
LLAMA = {
    **TOY_SIZES,
    **SIZES,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
}
QWEN3_MOE = {
    **TOY_MOE_SIZES,
    **SIZES,
    "head_dim": 32,
    "moe_intermediate_size": 128,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
}


def config(group: int = 128, **changes: Any) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": group,
        "sym": True,
        "desc_act": False,
        "checkpoint_format": "marlin",
        **changes,
    }


def orders() -> tuple[list[int], list[int], list[int]]:
    """The orders of codes in four tiles, of scales, and of scales of a single group, as Marlin's
    `_get_perms` builds them."""
    codes = list[int]()
    for i in range(32):
        offsets = []
        for block in (0, 1):
            for row in (2 * (i % 4), 2 * (i % 4) + 1, 2 * (i % 4 + 4), 2 * (i % 4 + 4) + 1):
                offsets.append(16 * row + i // 4 + 8 * block)
        for j in range(4):
            codes.extend(p + 256 * j for p in offsets)
    mixed = np.array(codes).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].ravel().tolist()
    scales = [i + 8 * j for i in range(8) for j in range(8)]
    single = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    return mixed, scales, single


CODES, SCALES, SINGLE = orders()


def encode(
    weight_OI: Tensor, group: int, dtype: torch.dtype = torch.float16
) -> tuple[dict[str, Tensor], Tensor]:
    """Round a matrix and pack it as Marlin's `Layer.pack` does: its parts, and their values."""
    rows, columns = weight_OI.shape
    group = columns if group == -1 else group
    groups_OGi = weight_OI.float().view(rows, -1, group)
    scales_OG = (groups_OGi.abs().amax(2) / 7 + 1e-4).to(dtype)
    steps_OG1 = scales_OG.float()[..., None]
    codes_OI = ((groups_OGi / steps_OG1).round() + 8).clamp(0, 15).view(rows, columns)
    values_OI = (steps_OG1 * (codes_OI.view(rows, -1, group) - 8)).view(rows, columns)
    stored = codes_OI.T.numpy().astype(np.uint32)  # (I, O), as Marlin names them k and n
    stored = stored.reshape(columns // 16, 16, rows // 16, 16).transpose(0, 2, 1, 3)
    stored = stored.reshape(-1, 1024)[:, CODES].reshape(columns // 16, rows * 16)
    words = np.zeros((columns // 16, rows * 2), np.uint32)
    for i in range(8):
        words |= stored[:, i::8] << np.uint32(4 * i)
    order = SINGLE if group == columns else SCALES
    mixed = scales_OG.T.reshape(-1, len(order))[:, order].reshape(-1, rows)
    return {"B": torch.from_numpy(words.view(np.int32)), "s": mixed.contiguous()}, values_OI


def decode(parts: Mapping[str, Tensor]) -> Tensor:
    """The values of parts, by the places at which Marlin's kernel reads them."""
    words, scales = parts["B"].numpy().view(np.uint32), parts["s"].float()
    columns, rows = words.shape[0] * 16, words.shape[1] // 2
    codes = np.stack([(words >> np.uint32(4 * i)) & 15 for i in range(8)], -1).reshape(-1, 1024)
    tiles = np.zeros_like(codes)
    tiles[:, CODES] = codes
    codes_IO = tiles.reshape(columns // 16, rows // 16, 16, 16).transpose(0, 2, 1, 3)
    order = SINGLE if len(scales) == 1 else SCALES
    plain = torch.zeros(scales.numel() // len(order), len(order))
    plain[:, order] = scales.reshape(-1, len(order))
    steps_IO = plain.view(scales.shape).repeat_interleave(columns // len(scales), 0)
    values_IO = torch.from_numpy(codes_IO.reshape(columns, rows).astype(np.float32)) - 8
    return (values_IO * steps_IO).T.contiguous()


VECTORS = load_file(Path(__file__).with_name("vectors.safetensors"))


@pytest.mark.parametrize(("group", "columns"), CASES)
def test_values_are_those_that_marlin_packs(group: int, columns: int) -> None:
    parts = {part: VECTORS[f"{group}_{columns}.{part}"] for part in "Bs"}
    weight = load(stored_matrix(parts, config(group)), parts, dtype="float32")
    size = columns if group == -1 else group
    values_OI = codes(columns) * scales(columns // size).float().repeat_interleave(size, 1)
    assert torch.equal(weight.rows(torch.arange(ROWS)), values_OI)


class MarlinTests(QuantSchemeTests):
    shapes = ((64, 256), (128, 384))
    group = 128

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return encode(torch.randn(rows, columns, generator=generator), self.group)[0]

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return decode(parts)


class TestGroups(MarlinTests):
    scheme = "marlin"
    quant_config = config(128)


class TestOneGroup(MarlinTests):
    scheme = "marlin"
    quant_config = config(-1)
    group = -1


@settings(max_examples=40, deadline=None)
@given(
    group=st.sampled_from([128, -1]),
    rows=st.integers(1, 4),
    groups=st.integers(1, 4),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    workspace=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_unpacking_is_bit_exact(
    group: int, rows: int, groups: int, dtype: torch.dtype, workspace: bool, seed: int
) -> None:
    shape = (rows * 64, groups * 128)
    weight_OI = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    parts, values_OI = encode(weight_OI, group, dtype)
    if workspace:
        parts["workspace"] = torch.zeros(8, dtype=torch.int32)
    stored = stored_matrix(parts, config(group))
    assert refuses(stored) is None
    weight, planned = load(stored, parts, dtype="float32"), holds(stored, "float32")
    assert torch.equal(weight.rows(torch.arange(shape[0])), values_OI)
    assert (planned.layout, planned.shape) == (weight.layout, shape)


@pytest.mark.parametrize(
    "own",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "is_marlin_format": True},
        {"quant_method": "marlin", "group_size": 128},
        {"bits": 4, "group_size": 128, "is_marlin_format": True},
    ],
)
def test_configs_of_old_writers_are_read(own: Mapping[str, Any]) -> None:
    parts, _ = encode(torch.randn(64, 256), 128)
    assert refuses(stored_matrix(parts, own)) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": 8}, "4 bits"),
        ({"group_size": 64}, "group_size"),
        ({"group_size": -1}, "make it"),
        ({"sym": False}, "zero points"),
        ({"desc_act": True}, "act-order"),
        ({"checkpoint_format": "marlin_24"}, "sparse"),
        ({"checkpoint_format": "gptq"}, "checkpoint_format"),
        ({"quant_method": "awq"}, "quant_method"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_named(
    change: Mapping[str, Any], said: str
) -> None:
    parts, _ = encode(torch.randn(64, 256), 128)
    assert said in str(refuses(stored_matrix(parts, config(**change))))


def test_the_sparse_format_is_refused_by_its_tensors() -> None:
    codes = torch.zeros(8, 128, dtype=torch.int32)
    parts = {"B_24": codes, "B_meta": codes.short(), "s": torch.ones(1, 64).half()}
    assert "sparse" in str(refuses(stored_matrix(parts, config())))


@settings(max_examples=100, deadline=None)
@given(
    shapes=st.dictionaries(
        st.sampled_from(["B", "s"]), st.lists(st.integers(0, 300), max_size=3).map(tuple)
    ),
    group=st.sampled_from([128, -1]),
)
def test_any_headers_are_read_or_refused_with_a_sentence(
    shapes: Mapping[str, tuple[int, ...]], group: int
) -> None:
    parts, _ = encode(torch.ones(64, 256), 128)
    headers = stored_matrix(parts, {}).parts
    infos = {n: TensorInfo(i.dtype, shapes.get(n, i.shape), 0) for n, i in headers.items()}
    stored = StoredMatrix(path="proj", parts=infos, quant_config=config(group))
    if (reason := refuses(stored)) is None:
        assert holds(stored, "float32").nbytes > 0
    else:
        assert len(reason.split()) > 3


def toy_checkpoints(folder: Path, model_config: Mapping[str, Any], group: int) -> tuple[Path, Path]:
    """Write a random model with all matrices but embedding, head and router in Marlin's tiles, and
    its twin with their values."""

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        return encode(tensor, group) if name.endswith("proj.weight") else None

    return write_twins(folder, model_config, config(group), stored)


@alike
@pytest.mark.parametrize("model_config", [LLAMA, QWEN3_MOE], ids=["llama", "qwen3-moe"])
@pytest.mark.parametrize("group", [128, -1])
def test_a_checkpoint_gives_the_tokens_of_its_dense_twin(
    model_config: dict[str, Any], group: int, tmp_path: Path
) -> None:
    pytest.importorskip(f"inferno_{model_config['model_type']}")
    assert_same_tokens(toy_checkpoints(tmp_path, model_config, group), torch_only())


def test_kernels_compute_it(tmp_path: Path) -> None:
    pytest.importorskip("inferno_llama")
    assert_kernels(toy_checkpoints(tmp_path, LLAMA, 128), "int4_g128")


def test_a_matrix_that_the_config_does_not_explain_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    pytest.importorskip("inferno_llama")
    packed, _ = toy_checkpoints(tmp_path, LLAMA, 128)
    change_quant_config(packed, lambda config: config.update(group_size=64))
    assert_refused(packed, "group_size must be 128")
