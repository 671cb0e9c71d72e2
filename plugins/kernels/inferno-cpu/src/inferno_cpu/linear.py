"""`linear` and `grouped` of the provider: a loaded weight, or several that share their input or are
experts of one layer, into panels that the kernels stream."""

from __future__ import annotations

from typing import Any

import torch

from inferno.nn import Dense, Weight
from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.layouts import PANEL_ROWS
from inferno_cpu.packed import PackedPanels


def stack(*weights: Weight) -> Weight | None:
    """One weight for these, stacked along the rows; None when they do not go together."""
    _native.set_threads(torch.get_num_threads())
    parts: tuple[Any, ...] = (
        weights  # `Dense`, or of a layout that this provider was asked about: `packed.Blocks`
    )
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
