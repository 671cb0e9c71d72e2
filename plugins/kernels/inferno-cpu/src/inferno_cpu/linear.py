"""The provider's `linear` and `grouped`: repack loaded weights into the panels of the kernels.

Several weights are stacked: those that share their input, or the experts of one layer.
"""

from __future__ import annotations

from typing import Any

import torch

from inferno.nn import Dense, Weight
from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.layouts import PANEL_ROWS
from inferno_cpu.packed import PackedPanels


def stack(*weights: Weight) -> Weight | None:
    """Stack `weights` along the rows into one weight; None if they cannot be concatenated."""
    _native.set_threads(torch.get_num_threads())
    # `Dense`, or `packed.Blocks` in a layout that this provider accepts.
    parts: tuple[Any, ...] = weights
    if any(weight.shape[0] % PANEL_ROWS for weight in weights[:-1]):
        whole = weights[0].concatenate(weights[1:])
        if whole is None:
            return None
        parts = (whole,)
    return (
        Panels.of(*parts)
        if isinstance(parts[0], Dense)
        else PackedPanels.of(*parts, dtype=parts[0].dtype)
    )
