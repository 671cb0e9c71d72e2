"""Random packed matrices in every layout that has a kernel, with their exact values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from inferno.nn import IntGroups, TableGroups, Weight
from inferno_triton.ggml import FORMS

SCALES: Mapping[str, Sequence[int]] = {
    "q4_1": (0, 2),
    "q5_1": (0, 2),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "mxfp4": (),
}
"""Offsets of the float16 numbers of a block, where they are not at its first byte alone."""


class GgmlBlocks(Weight):
    """A matrix in ggml's blocks, whose values gguf-py computes."""

    def __init__(self, layout: str, data_OB: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        kind = FORMS[layout]
        self.layout, self.data, self.dtype = layout, data_OB, dtype
        self.shape = (len(data_OB), data_OB.shape[1] // kind.nbytes * kind.values)

    def values(self) -> Tensor:
        """All values, float32."""
        ggml = GGMLQuantizationType[re.sub("k$", "K", self.layout.upper())]
        return torch.from_numpy(dequantize(self.data.numpy(), ggml))

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.values()[ids_T].to(self.dtype)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        every = [self, *(other for other in others if isinstance(other, GgmlBlocks))]
        return GgmlBlocks(self.layout, torch.cat([each.data for each in every]), self.dtype)


def random_blocks(layout: str, rows: int, columns: int, dtype: torch.dtype) -> GgmlBlocks:
    """Return a matrix of random bytes with ordinary scales."""
    rng, kind = np.random.default_rng(rows + columns), FORMS[layout]
    data = rng.integers(0, 256, (rows, columns // kind.values, kind.nbytes), dtype=np.uint8)
    for at in SCALES.get(layout, (0,)):
        numbers = rng.choice([0.01, -0.02, 0.005], data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = numbers[..., None].view(np.uint8)
    if layout == "mxfp4":
        data[..., 0] = rng.choice([0, 118, 120, 121], data.shape[:2])
    return GgmlBlocks(layout, torch.from_numpy(data.reshape(rows, -1)), dtype)


def exact(weight: GgmlBlocks | IntGroups | TableGroups) -> Tensor:
    """The values, float64."""
    values = weight.values() if isinstance(weight, GgmlBlocks) else weight.values(slice(None))
    return values.double()
