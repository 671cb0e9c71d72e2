"""Values are those of the stored integers and floats; models give the tokens of their dense
twins."""

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
from inferno.errors import CheckpointError, UnsupportedError
from inferno.testing import (
    TOY_MOE_SIZES,
    TOY_SIZES,
    Encoded,
    QuantSchemeTests,
    assert_near,
    assert_refused,
    assert_same_tokens,
    change_quant_config,
    convert,
    plan_of,
    stored_matrix,
    torch_only,
    write_twins,
)
from inferno_compressed_tensors import holds, refuses
from inferno_compressed_tensors.weight import load

LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN3_MOE = {
    **TOY_MOE_SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 64,
}
VECTORS = load_file(Path(__file__).with_name("vectors.safetensors"))
FORMATS: dict[str, dict[str, Any]] = {
    "int4-group": {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True},
    "int4-zeros": {"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False},
    "int4-ordered": {
        "num_bits": 4,
        "strategy": "group",
        "group_size": 32,
        "symmetric": True,
        "actorder": "group",
    },
    "int8-packed": {"num_bits": 8, "strategy": "channel", "group_size": None, "symmetric": True},
    "int8-packed-zeros": {"num_bits": 8, "strategy": "group", "group_size": 32, "symmetric": False},
    "w8a8": {"num_bits": 8, "strategy": "channel", "symmetric": True},
    "w8a8-tensor": {"num_bits": 8, "strategy": "tensor", "symmetric": True},
    "w8a8-zeros": {"num_bits": 8, "strategy": "channel", "symmetric": False},
    "fp8-rows": {"num_bits": 8, "strategy": "channel", "symmetric": True, "type": "float"},
    "fp8-tensor": {"num_bits": 8, "strategy": "tensor", "symmetric": True, "type": "float"},
    "fp8-blocks": {
        "num_bits": 8,
        "strategy": "block",
        "block_structure": [32, 32],
        "symmetric": True,
        "type": "float",
    },
}


def config(kind: str) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "int", **FORMATS[kind]}}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized" if kind.startswith(("int4", "int8")) else "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": None,
    }


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Words of codes along the last axis, by the loop of `pack_to_int32`."""
    each = 32 // bits
    words = np.zeros((len(codes), -(-codes.shape[1] // each)), np.uint32)
    for i in range(each):
        own = codes[:, i::each].astype(np.uint32)
        words[:, : own.shape[1]] |= own << np.uint32(bits * i)
    return words.view(np.int32)


def encode(
    weight_OI: Tensor, kind: str, seed: int = 0, dtype: torch.dtype = torch.float16
) -> tuple[dict[str, Tensor], Tensor]:
    """Round a matrix: its parts, and the values that these represent, in float32."""
    form, (rows, columns) = FORMATS[kind], weight_OI.shape
    bits, group = form["num_bits"], form.get("group_size") or columns
    weight = weight_OI.double().numpy()
    if form.get("type") == "float":
        return _floats(weight_OI, form, dtype)
    g_idx_I = np.arange(columns) // group
    if "actorder" in form:
        np.random.default_rng(seed).shuffle(g_idx_I)
    half, groups = 1 << bits - 1, columns // group
    scales_OG, zeros_OG = np.zeros((rows, groups)), np.zeros((rows, groups), np.int64)
    for g in range(groups):
        own = weight[:, g_idx_I == g]
        low, high = np.minimum(own.min(1), 0), np.maximum(own.max(1), 0)
        if form["symmetric"]:
            scales_OG[:, g] = np.maximum(-low, high) / (half - 0.5) + 1e-6
        else:
            scales_OG[:, g] = (high - low) / (2 * half - 1) + 1e-6
            zeros_OG[:, g] = np.rint(-low / scales_OG[:, g]).clip(0, 2 * half - 1) - half
    if form["strategy"] == "tensor":
        scales_OG[:] = scales_OG.max()
    scales = torch.from_numpy(scales_OG).to(dtype)
    exact_OG = scales.double().numpy()
    q_OI = np.rint(weight / exact_OG[:, g_idx_I]) + zeros_OG[:, g_idx_I]
    q_OI = q_OI.clip(-half, half - 1).astype(np.int64)
    values_OI = exact_OG[:, g_idx_I] * (q_OI - zeros_OG[:, g_idx_I])
    parts = {"weight_scale": scales[:1, 0] if form["strategy"] == "tensor" else scales}
    if kind.startswith("w8a8"):
        parts["weight"] = torch.from_numpy(q_OI.astype(np.int8))
        zeros = torch.from_numpy(zeros_OG.astype(np.int8))
    else:
        parts["weight_packed"] = torch.from_numpy(packed(q_OI + half, bits))
        parts["weight_shape"] = torch.tensor([rows, columns])
        words_GW = packed((zeros_OG + half).T, bits)
        zeros = torch.from_numpy(np.ascontiguousarray(words_GW.T))
    if not form["symmetric"]:
        parts["weight_zero_point"] = zeros
    if "actorder" in form:
        parts["weight_g_idx"] = torch.from_numpy(g_idx_I.astype(np.int32))
    return parts, torch.from_numpy(values_OI).float()


def _floats(
    weight_OI: Tensor, form: Mapping[str, Any], dtype: torch.dtype
) -> tuple[dict[str, Tensor], Tensor]:
    rows, columns = weight_OI.shape
    block = {"channel": (1, columns), "tensor": (rows, columns)}.get(form["strategy"], (32, 32))
    of_O, of_I = torch.arange(rows) // block[0], torch.arange(columns) // block[1]
    scales_PQ = torch.zeros(int(of_O[-1]) + 1, int(of_I[-1]) + 1)
    for p in range(len(scales_PQ)):
        for q in range(scales_PQ.shape[1]):
            scales_PQ[p, q] = weight_OI[of_O == p][:, of_I == q].abs().max() / 448
    scales_PQ = scales_PQ.to(dtype)
    each_OI = scales_PQ.float()[of_O[:, None], of_I]
    data_OI = (weight_OI.float() / each_OI).to(torch.float8_e4m3fn)
    scale = scales_PQ[0] if form["strategy"] == "tensor" else scales_PQ
    return {"weight": data_OI, "weight_scale": scale}, data_OI.float() * each_OI


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
        found: np.ndarray = each @ (1 << np.arange(bits)) - half
        return found

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


def test_the_first_target_that_names_a_module_counts() -> None:
    weights = FORMATS["int4-group"]
    groups = {
        "of all": {"targets": ["Linear"], "weights": {**weights, "num_bits": 8}},
        "of some": {
            "targets": ["re:.*down_proj", "model.layers.0.mlp.up_proj"],
            "weights": weights,
        },
        "of none": {"targets": ["re:.*o_proj"], "weights": None},
    }
    named = {**config("int4-group"), "config_groups": groups}
    parts, _ = encode(torch.randn(32, 64), "int4-group")
    reasons = {
        name: refuses(stored_matrix(parts, named, f"model.layers.0.{name}"))
        for name in ("mlp.up_proj", "mlp.down_proj", "mlp.gate_proj", "self_attn.o_proj")
    }
    assert reasons["mlp.up_proj"] is None and reasons["mlp.down_proj"] is None
    assert "weight_scale" in str(reasons["mlp.gate_proj"]), "read with 8 bits"
    assert "not quantized" in str(reasons["self_attn.o_proj"])


@pytest.mark.parametrize(
    ("target", "said"), [("re:(([a-z0-9._])+)+!", "for ever"), ("re:(", "not a pattern")]
)
def test_targets_that_could_hang_or_are_malformed_are_refused(target: str, said: str) -> None:
    groups = {"of some": {"targets": [target], "weights": FORMATS["int4-group"]}}
    parts, _ = encode(torch.randn(32, 64), "int4-group")
    named = {**config("int4-group"), "config_groups": groups}
    reason = refuses(stored_matrix(parts, named, "model.layers.0.mlp.experts.0.up_proj"))
    assert reason is not None and repr(target) in reason and said in reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_bits": 3}, "4 packed bits"),
        ({"num_bits": None}, "4 packed bits"),
        ({"group_size": 64}, "groups of 64"),
        ({"group_size": "all"}, "group_size"),
        ({"symmetric": False}, "zero points"),
        ({"symmetric": "no"}, "symmetric"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_named(
    change: Mapping[str, Any], said: str
) -> None:
    parts, _ = encode(torch.randn(32, 64), "int4-group")
    changed = config("int4-group")
    changed["config_groups"]["group_0"]["weights"] |= change
    assert said in str(refuses(stored_matrix(parts, changed)))


def test_a_shape_that_is_stored_and_is_not_that_of_the_codes_is_an_error() -> None:
    parts, _ = encode(torch.randn(32, 64), "int4-group")
    parts["weight_shape"] = torch.tensor([32, 60])
    with pytest.raises(CheckpointError, match="weight_shape"):
        load(stored_matrix(parts, config("int4-group")), parts, dtype="float32")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-300, 300) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    changes=st.dictionaries(st.sampled_from([*config("int4-group")]), _JSON, max_size=2),
    weights=st.dictionaries(
        st.sampled_from(["num_bits", "strategy", "group_size", "symmetric", "block_structure"]),
        _JSON,
        max_size=3,
    ),
    target=_JSON,
    shapes=st.dictionaries(
        st.sampled_from(["weight_packed", "weight_scale", "weight", "weight_zero_point"]),
        st.lists(st.integers(0, 300), max_size=3).map(tuple),
        max_size=2,
    ),
    kind=st.sampled_from([*FORMATS]),
)
def test_any_config_and_headers_are_read_or_refused_with_a_sentence(
    changes: Mapping[str, Any],
    weights: Mapping[str, Any],
    target: Any,
    shapes: Mapping[str, tuple[int, ...]],
    kind: str,
) -> None:
    parts, _ = encode(torch.ones(32, 64), kind)
    changed = config(kind)
    changed["config_groups"]["group_0"]["weights"] |= weights
    changed["config_groups"]["first"] = {"targets": [target, "Linear"], "weights": weights}
    stored = stored_matrix(parts, {**changed, **changes})
    for part, shape in shapes.items():
        if part in stored.parts:
            stored.parts[part] = TensorInfo(stored.parts[part].dtype, shape, 0)  # type: ignore[index]
    reason = refuses(stored)
    if reason is None:
        assert holds(stored, "float32").nbytes > 0
        return
    assert len(reason.split()) > 3


def toy_checkpoints(folder: Path, model_config: Mapping[str, Any], kind: str) -> tuple[Path, Path]:
    """Write a random model with all matrices but embedding, head and router in this format, with
    scales of a quantized cache, and its twin with their values."""

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        return encode(tensor, kind, number) if name.endswith("proj.weight") else None

    scales = {"model.layers.0.self_attn.k_scale": torch.ones(1)}
    return write_twins(folder, model_config, config(kind), stored, extra=scales)


def test_rotations_at_run_time_are_refused_by_name_in_a_plan_and_in_a_conversion(
    tmp_path: Path,
) -> None:
    path, _ = toy_checkpoints(tmp_path, LLAMA, "int4-group")
    apply = [{"targets": ["Linear"], "location": "input", "inverse": False, "ignore": []}]
    transforms = {"config_groups": {"R4": {"type": "hadamard", "apply": apply}}}
    change_quant_config(path, lambda found: found.update(transform_config=transforms))
    for read in (plan_of, lambda ref: convert(ref, "safetensors", tmp_path / "dense")):
        with pytest.raises(UnsupportedError, match="transform_config: rotations at run time"):
            read(str(path))
    change_quant_config(
        path, lambda found: found.update(transform_config={})
    )  # as llm-compressor writes without any
    assert plan_of(str(path)).schemes


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


def test_a_format_that_is_not_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("inferno_llama")
    packed_path, _ = toy_checkpoints(tmp_path, LLAMA, "int4-group")
    change_quant_config(
        packed_path, lambda config: config["config_groups"]["group_0"]["weights"].update(num_bits=2)
    )
    assert_refused(packed_path, "4 packed bits")
