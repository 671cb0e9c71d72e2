"""The definition of bitsandbytes' formats, for tests: matrices as checkpoints store them, and the
values of what is stored, code by code.

Suffixes: O rows, I columns, N blocks of consecutive values, M groups of these, B bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

VECTORS = load_file(Path(__file__).with_name("vectors.safetensors"))
"""What bitsandbytes itself stored (bitsandbytes_vectors.py)."""
CODES = VECTORS["nf4_64_nested_4x128.weight.nested_quant_map"]
TABLES = {kind: VECTORS[f"{kind}_64_plain_4x128.weight.quant_map"] for kind in ("nf4", "fp4")}


def config(kind: str = "nf4", *, nested: bool = False) -> dict[str, Any]:
    """As transformers writes it."""
    return {
        "quant_method": "bitsandbytes",
        "_load_in_4bit": kind != "int8",
        "_load_in_8bit": kind == "int8",
        "load_in_4bit": kind != "int8",
        "load_in_8bit": kind == "int8",
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": "fp4" if kind == "int8" else kind,
        "bnb_4bit_use_double_quant": nested,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": ["lm_head"],
        "llm_int8_threshold": 6.0,
    }


def nearest(values: Tensor, table: Tensor) -> Tensor:
    return (values[..., None] - table).abs().argmin(-1)


def encode(
    weight_OI: Tensor, kind: str, block: int = 64, *, nested: bool = False
) -> tuple[dict[str, Tensor], Tensor]:
    """Round a matrix: its tensors as stored, by the ends of their names, and their values."""
    if kind == "int8":
        scales_O = (weight_OI.abs().amax(1) / 127).half().float() + 2**-14
        codes_OI = (weight_OI / scales_O[:, None]).round().clamp(-127, 127)
        # A scale that float16 has: it is held as one.
        entries = {"weight": codes_OI.char(), "SCB": scales_O.half().float() * 127}
        return {**entries, "weight_format": torch.tensor(0, dtype=torch.uint8)}, values(entries)
    flat = weight_OI.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax_N = blocks.abs().amax(1) + 1e-6
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float32"}
    state["shape"] = list(weight_OI.shape)
    parts = {"weight.quant_map": TABLES[kind].clone()}
    if nested:
        offset = float(absmax_N.mean())
        groups = torch.nn.functional.pad(absmax_N - offset, (0, -len(absmax_N) % 256)).view(-1, 256)
        outer_M = groups.abs().amax(1) + 1e-6
        codes_N = nearest(groups / outer_M[:, None], CODES).flatten()[: len(absmax_N)]
        parts |= {"weight.absmax": codes_N.byte(), "weight.nested_absmax": outer_M}
        parts["weight.nested_quant_map"] = CODES.clone()
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    else:
        parts["weight.absmax"] = absmax_N
    codes = nearest(blocks / absmax_N[:, None], TABLES[kind]).flatten()[: len(flat)].byte()
    parts["weight"] = (codes[::2] << 4 | codes[1::2])[:, None]
    text = torch.from_numpy(np.frombuffer(json.dumps(state).encode(), np.uint8).copy())
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = text
    return parts, values(parts)


def values(stored: Mapping[str, Tensor]) -> Tensor:
    """The values of tensors as stored, code by code."""
    parts = {name.rpartition(".")[2]: tensor for name, tensor in stored.items()}
    if "SCB" in parts:
        return parts["weight"].float() * (parts["SCB"] / 127)[:, None]
    kind = next(name for name in parts if name.startswith("bitsandbytes__"))
    state = json.loads(bytes(parts[kind].numpy()))
    absmax_N = parts["absmax"].float()
    if "nested_offset" in state:
        each = torch.arange(len(absmax_N)) // state["nested_blocksize"]
        absmax_N = parts["nested_quant_map"][parts["absmax"].long()] * parts["nested_absmax"][each]
        absmax_N = absmax_N + state["nested_offset"]
    bytes_B = parts["weight"].flatten().long()
    codes = torch.stack([bytes_B >> 4, bytes_B & 15], 1).flatten()
    weights = parts["quant_map"][codes] * absmax_N[torch.arange(len(codes)) // state["blocksize"]]
    return weights.view(state["shape"])


def parts_of(stored: Mapping[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The parts of a module: what the scheme sees after its `adapt`."""
    parts = {name.rpartition(".")[2]: tensor for name, tensor in stored.items()}
    if "SCB" not in parts:
        parts["weight"] = parts["weight"].view(shape[0], -1)
    return parts
