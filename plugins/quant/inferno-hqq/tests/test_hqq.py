"""Values are those that hqq reads; models give the tokens of their dense twins.

Suffixes: O rows, I columns, R rows and C columns of codes.
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

from inferno.contracts import StoredMatrix, TensorInfo
from inferno.errors import CheckpointError
from inferno.testing import (
    TOY_MOE_SIZES,
    TOY_SIZES,
    Encoded,
    QuantSchemeTests,
    alike,
    assert_kernels,
    assert_same_tokens,
    stored_matrix,
    torch_only,
    write_twins,
)
from inferno_hqq import holds, refuses
from inferno_hqq.weight import load

VECTORS = load_file(Path(__file__).with_name("vectors.safetensors"))
LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN3_MOE = {
    **TOY_MOE_SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
}


def params(bits: int, group: int = 64, axis: int = 1) -> dict[str, Any]:
    fields = {"nbits": bits, "group_size": group, "axis": axis, "channel_wise": True}
    return {"weight_quant_params": {**fields, "optimize": True, "round_zero": bits == 4}}


def config(bits: int = 4, group: int = 64, axis: int = 1) -> dict[str, Any]:
    """As transformers writes it."""
    fields = params(bits, group, axis)
    return {"quant_config": fields, "quant_method": "hqq", "skip_modules": ["lm_head"]}


def encode(
    weight_OI: Tensor, bits: int, group: int = 64, axis: int = 1
) -> tuple[dict[str, Tensor], Tensor]:
    """Round a matrix: its parts as hqq stores them, and their values."""
    shape = weight_OI.shape
    grid_RC = weight_OI.reshape(-1, group) if axis else weight_OI.reshape(group, -1)
    low, high = grid_RC.amin(axis, keepdim=True), grid_RC.amax(axis, keepdim=True)
    scale = ((high - low) / ((1 << bits) - 1) + 1e-4).half()
    zero = (-low / scale.float()).half()
    codes_RC = (grid_RC / scale.float() + zero.float()).round().clamp(0, (1 << bits) - 1)
    values_OI = ((codes_RC - zero.float()) * scale.float()).reshape(shape)
    count = 10 if bits == 3 else 8 // bits
    padded = torch.nn.functional.pad(codes_RC, (0, 0, 0, -len(codes_RC) % count)).int()
    stored = torch.zeros_like(padded[: len(padded) // count])
    for part in padded.chunk(count):
        stored = stored << bits | part
    parts = {
        "W_q": stored if bits == 3 else stored.to(torch.uint8),
        "scale": scale,
        "zero": zero,
        "shape": torch.tensor(shape),
        "nbits": torch.tensor(bits, dtype=torch.int32),
        "group_size": torch.tensor(group, dtype=torch.int32),
        "axis": torch.tensor(axis, dtype=torch.int32),
        "packing": torch.tensor(list(b"4bit_u8"), dtype=torch.uint8),
    }
    return parts, values_OI


def decode(parts: Mapping[str, Tensor]) -> Tensor:
    """The values of parts, code by code."""
    bits, axis = int(parts["nbits"]), int(parts["axis"])
    count, stored = 10 if bits == 3 else 8 // bits, parts["W_q"].long()
    codes = [stored >> (bits * (count - 1 - part)) & (1 << bits) - 1 for part in range(count)]
    scale, zero = parts["scale"].float(), parts["zero"].float()
    grid_RC = torch.cat(codes)[: len(scale) if axis else int(parts["group_size"])].float()
    shape = [int(size) for size in parts["shape"]]
    return ((grid_RC - zero) * scale).reshape(shape)


class HqqTests(QuantSchemeTests):
    bits, axis = 4, 1

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        weight_OI = torch.randn(rows, columns, generator=generator)
        return encode(weight_OI, self.bits, 64, self.axis)[0]

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return decode(parts)


class TestBits4(HqqTests):
    scheme = "hqq"
    quant_config = config(4)


class TestBits3(HqqTests):
    scheme = "hqq"
    quant_config = config(3)
    bits = 3


class TestBits8(HqqTests):
    scheme = "hqq"
    quant_config = config(8)
    bits = 8


class TestAxis0(HqqTests):
    scheme = "hqq"
    quant_config = config(2, axis=0)
    bits, axis = 2, 0


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_values_are_those_that_hqq_reads(bits: int, axis: int) -> None:
    name = f"bits{bits}axis{axis}"
    parts = {n.partition(".")[2]: t for n, t in VECTORS.items() if n.startswith(f"{name}.")}
    wanted_OI = parts.pop("values")
    stored = stored_matrix(parts, config(bits, axis=axis))
    assert refuses(stored) is None
    weight = load(stored, parts, dtype="float32")
    assert torch.equal(weight.rows(torch.arange(len(wanted_OI))), wanted_OI)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([1, 2, 3, 4, 8]),
    group=st.sampled_from([8, 32, 64, 128, 256]),
    axis=st.sampled_from([0, 1]),
    rows=st.sampled_from([8, 16, 40]),
    groups=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_unpacking_is_bit_exact(
    bits: int, group: int, axis: int, rows: int, groups: int, seed: int
) -> None:
    shape = (rows, group * groups)
    weight_OI = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    parts, values_OI = encode(weight_OI, bits, group, axis)
    stored = stored_matrix(parts, config(bits, group, axis))
    assert refuses(stored) is None
    weight, planned = load(stored, parts, dtype="float32"), holds(stored, "float32")
    assert torch.equal(weight.rows(torch.arange(rows)), values_OI)
    assert (planned.layout or "float32") == weight.layout
    assert planned.nbytes == sum(tensor.nbytes for tensor in weight.buffers())
    assert planned.values == rows * group * groups


def test_settings_may_differ_between_modules() -> None:
    parts, _ = encode(torch.randn(16, 128), 2)
    modules = {"mlp.up_proj": params(2), "mlp.down_proj": params(4)}
    both = {**config(), "quant_config": modules}
    path = "model.layers.3.mlp.{}_proj"
    assert refuses(stored_matrix(parts, both, path.format("up"))) is None
    assert "2 bits" not in str(refuses(stored_matrix(parts, both, path.format("down"))))
    assert "4 bits" in str(refuses(stored_matrix(parts, both, path.format("down"))))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quant_config": params(2)}, "2 bits"),
        ({"quant_config": params(3)}, "'?3'?"),
        ({"quant_config": params(4, group=32)}, "group_size 32"),
        ({"quant_config": params(4, axis=0)}, "axis 0"),
        ({"quant_config": None}, "weight_quant_params"),
        ({"quant_method": "awq"}, "quant_method"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_named(
    change: Mapping[str, Any], said: str
) -> None:
    parts, _ = encode(torch.randn(8, 64), 4)
    reason = refuses(stored_matrix(parts, {**config(), **change}))
    assert reason is not None
    assert said.strip("'?") in reason


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("nbits", 2, "nbits"),
        ("axis", 0, "axis"),
        ("shape", [8, 32], "values are stored"),
        ("shape", [512], "values are stored"),
        ("shape", [16, 32], "do not fit"),
        ("zero", torch.full((8, 1), float("inf")), "zero point"),
        ("scale", torch.full((8, 1), float("nan")), "scale"),
    ],
)
def test_a_description_that_contradicts_the_tensors_is_named(
    part: str, value: Any, said: str
) -> None:
    parts, _ = encode(torch.randn(8, 64), 4)
    parts |= {part: torch.as_tensor(value)}
    stored = stored_matrix(parts, config())
    assert refuses(stored) is None
    with pytest.raises(CheckpointError, match=said):
        load(stored, parts, dtype="float32")


@settings(max_examples=150, deadline=None)
@given(
    shapes=st.dictionaries(
        st.sampled_from(["W_q", "scale", "zero"]),
        st.lists(st.integers(0, 70), max_size=3).map(tuple),
    ),
    bits=st.sampled_from([1, 2, 3, 4, 8]),
    axis=st.sampled_from([0, 1]),
)
def test_any_headers_are_read_or_refused_with_a_sentence(
    shapes: Mapping[str, tuple[int, ...]], bits: int, axis: int
) -> None:
    headers = stored_matrix(encode(torch.randn(8, 64), bits, 64, axis)[0], {}).parts
    infos = {n: TensorInfo(i.dtype, shapes.get(n, i.shape), 0) for n, i in headers.items()}
    stored = StoredMatrix(path="proj", parts=infos, quant_config=config(bits, 64, axis))
    if (reason := refuses(stored)) is None:
        assert holds(stored, "float32").nbytes > 0
    else:
        assert len(reason.split()) > 3


def toy_checkpoints(
    folder: Path, model_config: Mapping[str, Any], bits: int, axis: int
) -> tuple[Path, Path]:
    """Write a random model with all matrices but embedding, head and router in HQQ, and its twin
    with their values."""

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        return encode(tensor, bits, 32, axis) if name.endswith("proj.weight") else None

    return write_twins(folder, model_config, config(bits, 32, axis), stored)


@alike
@pytest.mark.parametrize("model_config", [LLAMA, QWEN3_MOE], ids=["llama", "qwen3-moe"])
@pytest.mark.parametrize(("bits", "axis"), [(4, 1), (8, 1), (4, 0)])
def test_a_checkpoint_gives_the_tokens_of_its_dense_twin(
    model_config: dict[str, Any], bits: int, axis: int, tmp_path: Path
) -> None:
    pytest.importorskip(f"inferno_{model_config['model_type']}")
    assert_same_tokens(toy_checkpoints(tmp_path, model_config, bits, axis), torch_only())


def test_kernels_compute_it(tmp_path: Path) -> None:
    pytest.importorskip("inferno_llama")
    assert_kernels(toy_checkpoints(tmp_path, LLAMA, 4, 1), "int4_g32")
