"""Results that a row collects over the chunks of its prompt.

Suffixes: N tokens of a slice, D hidden.
"""

from __future__ import annotations

import torch
from attrs import define, field
from torch import Tensor

from inferno.requests import Logprobs, Reduction


@define
class PromptLogprobs:
    """Log-probabilities of the computed part of a prompt."""

    token_ids: tuple[int, ...]
    top: int
    found: list[Logprobs] = field(factory=list)


@define
class Pooled:
    """Hidden states of the computed part of a prompt, reduced."""

    num_tokens: int
    how: Reduction
    vector_D: Tensor = field(factory=lambda: torch.zeros(()))

    def add(self, hidden_ND: Tensor, *, first: bool) -> None:
        if self.how == "mean":
            self.vector_D = self.vector_D + hidden_ND.sum(0) / self.num_tokens
        elif self.how == "max":
            best_D = hidden_ND.amax(0)
            self.vector_D = best_D if first else torch.maximum(self.vector_D, best_D)
        elif first or self.how == "last":
            self.vector_D = hidden_ND[0 if self.how == "first" else -1]
