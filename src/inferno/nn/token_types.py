"""The types of a step's tokens: which of two texts they belong to.

Suffixes: T packed tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferno.nn.batch import Batch
from inferno.nn.layer import Layer


class TokenTypes(Layer):
    """1 for the tokens of a prompt's second text (`Request.second`), else 0: what encoders tell the
    texts of a pair apart by. The runner writes `values_T` before each step."""

    values_T: Tensor
    """int64, of as many tokens as a step may have; empty without a runner."""

    def __init__(self) -> None:
        super().__init__()
        self.values_T = torch.empty(0, dtype=torch.int64)

    def forward(self, batch: Batch) -> Tensor:
        """Return the types of the step's tokens, int64 (T,)."""
        if not len(self.values_T):
            return torch.zeros_like(batch.token_ids_T)
        return self.values_T[: len(batch.token_ids_T)]
