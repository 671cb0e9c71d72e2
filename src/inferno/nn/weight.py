"""A matrix as the layers see it: something to multiply by and to take rows of.

Suffixes: O rows (output features), I columns (input features), T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class Weight(nn.Module):
    """A matrix of O rows and I columns. How it is stored is its own business."""

    shape: tuple[int, int]

    def matmul(self, x_TI: Tensor) -> Tensor:
        """x_TI @ W_OI.T -> y_TO, in x's type."""
        raise NotImplementedError

    def rows(self, ids_T: Tensor) -> Tensor:
        """W_OI[ids_T] -> x_TI, in the compute type."""
        raise NotImplementedError

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        """One weight for this and `others` stacked along O, or None when their layouts do not allow it."""
        return None

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return sum(t.numel() * t.element_size() for t in (*self.parameters(), *self.buffers()))


class Unloaded(Weight):
    """Holds the place, and the shape, until the loader comes."""

    def __init__(self, out_features: int, in_features: int) -> None:
        super().__init__()
        self.shape = (out_features, in_features)


class Dense(Weight):
    """A plain matrix."""

    def __init__(self, weight_OI: Tensor) -> None:
        super().__init__()
        out_features, in_features = weight_OI.shape
        self.shape = (out_features, in_features)
        self.data: Tensor
        self.register_buffer("data", weight_OI)

    def matmul(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.data)

    def rows(self, ids_T: Tensor) -> Tensor:
        return F.embedding(ids_T, self.data)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        import torch

        if not all(isinstance(w, Dense) and w.data.dtype == self.data.dtype for w in others):
            return None
        return Dense(torch.cat([self.data, *(w.data for w in others if isinstance(w, Dense))]))
