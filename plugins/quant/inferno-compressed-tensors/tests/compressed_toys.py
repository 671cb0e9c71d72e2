"""Matrices and models in the formats of compressed-tensors, and the values they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inferno.testing import TOY_MOE_SIZES, TOY_SIZES, Encoded, write_twins

LLAMA = {**TOY_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN3_MOE = {
    **TOY_MOE_SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 64,
}
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
        lane = codes[:, i::each].astype(np.uint32)
        words[:, : lane.shape[1]] |= lane << np.uint32(bits * i)
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
        subset = weight[:, g_idx_I == g]
        low, high = np.minimum(subset.min(1), 0), np.maximum(subset.max(1), 0)
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


def toy_checkpoints(folder: Path, model_config: Mapping[str, Any], kind: str) -> tuple[Path, Path]:
    """Write a random model with all matrices but embedding, head and router in this format, with
    scales of a quantized cache, and its twin with their values."""

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        return encode(tensor, kind, number) if name.endswith("proj.weight") else None

    scales = {"model.layers.0.self_attn.k_scale": torch.ones(1)}
    return write_twins(folder, model_config, config(kind), stored, extra=scales)
