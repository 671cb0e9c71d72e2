"""`linear` of the provider: a loaded weight, or several that share their input, into panels that the kernels stream."""

from __future__ import annotations

from typing import Any

import torch

from inferno.nn import Dense, Weight
from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.packed import PackedPanels


def stack(*weights: Weight) -> Weight | None:
    """One weight for these, stacked along the rows; None when they do not go together."""
    _native.set_threads(torch.get_num_threads())
    whole = weights[0] if len(weights) == 1 else weights[0].concatenate(weights[1:])
    if whole is None:
        return None
    if isinstance(whole, Dense):
        return Panels.of(whole)
    blocks: Any = whole  # of a layout that this provider was asked about: `packed.Blocks`
    return PackedPanels.of(blocks, blocks.dtype)
