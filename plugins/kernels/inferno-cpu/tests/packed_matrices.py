"""Packed matrices of random blocks, their float64 products, and how far a kernel may be from them.

Suffixes: O rows, I columns, B bytes of a row, G groups of 32 columns, T tokens.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import torch
from attrs import define
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from inferno_cpu.layouts import LAYOUTS
from inferno_cpu.packed import PackedPanels, pack

GGML = {
    name: GGMLQuantizationType[re.sub("k$", "K", name.upper())]
    for name in LAYOUTS
    if not name.startswith(("int", "w8a8"))
}


class Matrix(NamedTuple):
    panels: PackedPanels
    w_OI: np.ndarray
    """The exact values, float32."""
    steps_OG: np.ndarray
    """For each 32 columns, the size of scale * (greatest code) and of the minimum: what rounding
    errors are measured by."""


@define
class Blocks:
    layout: str
    data: Tensor
    shape: tuple[int, int]


def scale_bytes(layout: str) -> list[int]:
    """Offsets of the float16 scales in a block."""
    return {
        "q8_0": [0],
        "q4_0": [0],
        "q4_1": [0, 2],
        "q5_0": [0],
        "q5_1": [0, 2],
        "q2_k": [80, 82],
        "q3_k": [108],
        "q4_k": [0, 2],
        "q5_k": [0, 2],
        "q6_k": [208],
        "iq4_nl": [0],
        "mxfp4": [],
    }[layout]


def random_blocks(
    layout: str, rows: int, columns: int, rng: np.random.Generator, scales: np.ndarray
) -> np.ndarray:
    """Random bytes, with float16 scales taken from `scales`."""
    kind = LAYOUTS[layout]
    blocks = rng.integers(0, 256, (rows, columns // kind.block, kind.block_bytes), dtype=np.uint8)
    for at in scale_bytes(layout):
        blocks[..., at : at + 2] = (
            rng.choice(scales, blocks.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
        )
    if layout == "mxfp4":
        exponents = [118, 120, 121] if scales is ORDINARY else [0, 1, 2, 3, 90, 127, 142]
        blocks[..., 0] = rng.choice(exponents, blocks.shape[:2])
    return blocks.reshape(rows, -1)


ORDINARY = np.array([0.01, -0.02, 0.005, 0.003])
EXTREME = np.array([65504, -65504, 6e-8, -6e-8, 6.1e-5, 0.0, -0.0, 1.0, 3e-5])


def matrix(
    layout: str,
    rows: int,
    columns: int,
    seed: int = 0,
    scales: np.ndarray = ORDINARY,
    dtype: torch.dtype = torch.float32,
) -> Matrix:
    rng = np.random.default_rng(seed)
    if layout not in GGML:
        return ints(layout, rows, columns, rng, scales, dtype)
    data = random_blocks(layout, rows, columns, rng, scales)
    w_OI = dequantize(data, GGML[layout])
    panels = PackedPanels.of(Blocks(layout, torch.from_numpy(data), (rows, columns)), dtype=dtype)
    # The greatest scale * code and minimum that a block of these bytes can have are within this of
    # its greatest value.
    steps = abs(w_OI.astype(np.float64)).reshape(rows, -1, 32).max(2) * 64
    return Matrix(panels, w_OI, steps)


def ints(
    layout: str,
    rows: int,
    columns: int,
    rng: np.random.Generator,
    scales: np.ndarray,
    dtype: torch.dtype,
) -> Matrix:
    """Integers in groups or rows. Some zero points are fractions."""
    in_rows, four = layout.startswith("w8a8"), layout.startswith("int4")
    group, symmetric = columns if in_rows else LAYOUTS[layout].block, "_sym" in layout
    groups, most = columns // group, 15 if four else 255
    data = rng.integers(0, 256, (rows, columns // 2 if four else columns), dtype=np.uint8)
    codes = np.stack([data & 15, data >> 4], -1) if four else data
    codes = codes.reshape(rows, groups, group).astype(np.float32)
    scale = rng.choice(scales, (rows, groups)).astype(np.float16)
    zero = rng.integers(0, most + 2, (rows, groups)).astype(np.float16)
    zero[rng.random(zero.shape) < 0.2] = 7.5
    if symmetric:
        zero[:] = 128
    # Two exact products: the difference is exact where the zero is whole.
    factor, zeros = (grid.astype(np.float32)[..., None] for grid in (scale, zero))
    exact = symmetric or in_rows
    w_OI = factor * (codes - zeros) if exact else factor * codes - factor * zeros
    steps = np.repeat(abs(scale.astype(np.float64)) * (most + zero), group // 32, 1)
    grids = [torch.from_numpy(scale), torch.from_numpy(zero)][: 1 if symmetric else 2]
    grids = [grid.float() if in_rows else grid for grid in grids]
    packed = pack(layout, (rows, columns), torch.from_numpy(data), *grids, dtype=dtype)
    panels = PackedPanels(layout, (rows, columns), dtype, packed)
    return Matrix(panels, w_OI.reshape(rows, columns), steps)


class Rounded(NamedTuple):
    """What the kernel should multiply."""

    q_TGi: np.ndarray
    """x in groups of 32 as int8, outliers as 0."""
    scale_TG: np.ndarray
    """Of rows for w8a8."""
    outliers_TI: np.ndarray
    """The element of each row that is not rounded; elsewhere 0. None for w8a8."""

    def values(self) -> np.ndarray:
        """(T, I)"""
        rounded_TI = (self.q_TGi * self.scale_TG[..., None]).reshape(self.outliers_TI.shape)
        values_TI: np.ndarray = rounded_TI + self.outliers_TI
        return values_TI


def rounded(m: Matrix, x_TI: np.ndarray) -> Rounded:
    """The greatest element of the group with the greatest scale is an outlier if the squares of the
    scales are three eighths less without it."""
    in_rows = m.panels.panel_layout.startswith("w8a8")
    T, G = len(x_TI), x_TI.shape[1] // 32
    x_TGi = x_TI.astype(np.float32).reshape(T, G, 32).copy()
    outliers_TGi, rows = np.zeros_like(x_TGi), np.arange(T)
    if not in_rows:
        scale_TG = (abs(x_TGi).max(2) / np.float32(127)).astype(np.float64)
        group_T = scale_TG.argmax(1)
        group_TI = x_TGi[rows, group_T]
        next_T, place_T = np.sort(abs(group_TI), 1)[:, -2], abs(group_TI).argmax(1)
        saved_T = scale_TG[rows, group_T] ** 2 - (next_T / np.float32(127)).astype(np.float64) ** 2
        has_T = saved_T > (scale_TG**2).sum(1) * 3 / 8
        at = rows[has_T], group_T[has_T], place_T[has_T]
        outliers_TGi[at] = x_TGi[at]
        x_TGi[at] = 0
    greatest_TG = abs(x_TGi).max(2)
    if in_rows:
        greatest_TG = greatest_TG.max(1, keepdims=True).repeat(G, 1)
    scale_TG = (greatest_TG / np.float32(127)).astype(np.float64)
    inverse_TG = np.float32(127) / np.where(greatest_TG == 0, 1, greatest_TG)
    q_TGi = np.rint(x_TGi * inverse_TG[..., None]).astype(np.float64)
    return Rounded(q_TGi, scale_TG, outliers_TGi.reshape(x_TI.shape).astype(np.float64))


def product(m: Matrix, x_TI: np.ndarray) -> np.ndarray:
    exact_TO: np.ndarray = rounded(m, x_TI).values() @ m.w_OI.T.astype(np.float64)
    return exact_TO


def tolerance(m: Matrix, x_TI: np.ndarray) -> np.ndarray:
    """Of a sum over G groups in float32: each term and each partial sum is rounded a few times,
    relative to the greatest that a group's sums of products and of minimums can be. (G + 4) * 2^-24
    of their total, the textbook bound."""
    x = rounded(m, x_TI)
    size_TG = abs(x.q_TGi).sum(2) * x.scale_TG
    size_TG += abs(x.outliers_TI).reshape(x.q_TGi.shape).sum(2)
    bound_TO: np.ndarray = (size_TG.shape[1] + 4) * 2.0**-24 * (size_TG @ m.steps_OG.T) + 1e-30
    return bound_TO


def activations(tokens: int, columns: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((tokens, columns)) * np.exp(rng.standard_normal((tokens, columns)))
    ).astype(np.float32)
