"""GPTQ matrices and checkpoints as gptqmodel writes them, packed value by value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from inferno.testing import (
    Encoded,
    write_twins,
)


@frozen(kw_only=True)
class Format:
    bits: int = 4
    group: int = 32
    symmetric: bool = True
    act_order: bool = False
    version: str = "gptq"
    dtype: torch.dtype = torch.float16

    @property
    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "sym": self.symmetric,
            "desc_act": self.act_order,
            "checkpoint_format": self.version,
        }


def packed(codes_IO: np.ndarray, bits: int) -> np.ndarray:
    """Words of codes along the first axis, by the loops of gptqmodel's `pack`."""
    columns, rows = codes_IO.shape
    words = np.zeros((columns * bits // 32, rows), np.uint32)
    codes = codes_IO.astype(np.uint32)
    if bits != 3:
        each = 32 // bits
        for i in range(columns):
            words[i // each] |= codes[i] << np.uint32(bits * (i % each))
        return words.view(np.int32)
    i = word = 0
    while word < len(words):
        for j in range(i, i + 10):
            words[word] |= codes[j] << np.uint32(3 * (j - i))
        i += 10
        words[word] |= codes[i] << np.uint32(30)
        word += 1
        words[word] |= (codes[i] >> np.uint32(2)) & np.uint32(1)
        i += 1
        for j in range(i, i + 10):
            words[word] |= codes[j] << np.uint32(3 * (j - i) + 1)
        i += 10
        words[word] |= codes[i] << np.uint32(31)
        word += 1
        words[word] |= (codes[i] >> np.uint32(1)) & np.uint32(3)
        i += 1
        for j in range(i, i + 10):
            words[word] |= codes[j] << np.uint32(3 * (j - i) + 2)
        i += 10
        word += 1
    return words.view(np.int32)


def written(form: Format, zeros_GO: np.ndarray) -> np.ndarray:
    """`qzeros`: in version 1 less one, by gptqmodel in whole words, of 3 bits by autogptq one by
    one."""
    lowered = (zeros_GO - 1) & 7 if form.version == "gptq" and form.bits == 3 else zeros_GO
    words = packed(lowered.T, form.bits).T.copy()
    if form.version == "gptq" and form.bits != 3:
        one = sum(1 << shift for shift in range(0, 32, form.bits))
        words = (words.view(np.uint32).astype(np.uint64) - one).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(words)


def encode(weight_OI: Tensor, form: Format, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Round a matrix to the format: its parts, and the values that these represent, in float32."""
    rows, columns = weight_OI.shape
    group = columns if form.group == -1 else form.group
    rng = np.random.default_rng(seed)
    g_idx_I = np.arange(columns) // group
    if form.act_order:
        rng.shuffle(g_idx_I)
    weight = weight_OI.double().numpy()
    groups, most = -(-columns // group), (1 << form.bits) - 1
    scales_GO, zeros_GO = np.zeros((groups, rows)), np.zeros((groups, rows), np.int64)
    for g in range(groups):
        subset = weight[:, g_idx_I == g]
        low, high = np.minimum(subset.min(1), 0), np.maximum(subset.max(1), 0)
        if form.symmetric:
            high = np.maximum(abs(low), high)
            low = -high
        scales_GO[g] = (high - low) / most + 1e-6
        zeros_GO[g] = most // 2 + 1 if form.symmetric else np.rint(-low / scales_GO[g])
    scales = torch.from_numpy(scales_GO).to(form.dtype)
    exact_GO = scales.double().numpy()
    codes_IO = np.rint(weight.T / exact_GO[g_idx_I]) + zeros_GO[g_idx_I]
    codes_IO = codes_IO.clip(0, most).astype(np.int64)
    parts = {
        "qweight": torch.from_numpy(packed(codes_IO, form.bits)),
        "qzeros": torch.from_numpy(written(form, zeros_GO)),
        "scales": scales,
        "g_idx": torch.from_numpy(g_idx_I.astype(np.int32)),
    }
    values_OI = (exact_GO[g_idx_I] * (codes_IO - zeros_GO[g_idx_I])).T
    return parts, torch.from_numpy(np.ascontiguousarray(values_OI)).float()


def decode(parts: Mapping[str, Tensor], form: Format) -> Tensor:
    """The values of parts, from their bits."""

    def codes(words: Tensor) -> np.ndarray:
        """Along the last axis."""
        data = np.ascontiguousarray(words.numpy()).view(np.uint8)
        each = np.unpackbits(data, axis=1, bitorder="little").reshape(len(data), -1, form.bits)
        return each @ (1 << np.arange(form.bits))

    codes_OI, scales_GO = codes(parts["qweight"].T), parts["scales"].double().numpy()
    zeros_GO = codes(parts["qzeros"])
    if form.version == "gptq":
        zeros_GO = (zeros_GO + 1) % (1 << form.bits)
    group_I = parts["g_idx"].numpy()
    values_OI = scales_GO[group_I].T * (codes_OI - zeros_GO[group_I].T)
    return torch.from_numpy(values_OI).float()


def toy_checkpoints(
    folder: Path,
    config: Mapping[str, Any],
    form: Format,
    others: Mapping[str, Format] | None = None,
) -> tuple[Path, Path]:
    """Write a random model with its matrices in GPTQ, the head and `others` by a part of their name
    in a format of their own, and its twin with their values."""

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        if not name.endswith(".weight") or tensor.ndim != 2:
            return None
        if "embed" in name or name.endswith("gate.weight"):
            return None
        choice = next((f for key, f in (others or {}).items() if key in name), form)
        parts, values = encode(tensor, choice, number)
        if "self_attn" in name:  # some writers store biases of models without any
            parts["bias"] = torch.zeros(len(tensor), dtype=torch.float16)
        return parts, values

    return write_twins(folder, config, form.config, stored)
