"""The provider's `linear` and `grouped`: repack loaded weights into the panels of the kernels.

Several weights are stacked: those that share their input, or the experts of one layer.
"""

from __future__ import annotations

from typing import Any

import torch

from inferno.nn import Dense, Fp8Blocks, TableGroups, Weight
from inferno_cpu import fp8, tables
from inferno_cpu.dense import Panels
from inferno_cpu.layouts import PANEL_ROWS, refuses
from inferno_cpu.packed import PackedPanels
from inferno_cpu.threads import use_torch_threads


def stack(*weights: Weight) -> Weight | None:
    """Stack `weights` along the rows into one weight; None if they cannot be concatenated, or have
    a shape that no kernel multiplies."""
    use_torch_threads()
    # `Dense`, `Fp8Blocks`, `TableGroups`, or packed weights in a layout that this provider accepts.
    parts: tuple[Any, ...] = weights
    if any(weight.shape[0] % PANEL_ROWS for weight in weights[:-1]):
        whole = weights[0].concatenate(weights[1:])
        if whole is None:
            return None
        parts = (whole,)
    if isinstance(parts[0], Dense):
        return Panels.of(*parts)
    dtype: torch.dtype = parts[0].dtype
    if refuses(parts[0].layout, str(dtype).removeprefix("torch."), parts[0].shape):
        return None
    if isinstance(parts[0], Fp8Blocks):
        return fp8.pack(*parts)
    if isinstance(parts[0], TableGroups):
        return tables.pack(*parts)
    return PackedPanels.of(*parts, dtype=dtype)
