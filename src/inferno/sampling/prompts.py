"""What a prompt gives besides tokens: log-probabilities, or an embedding.

Suffixes: P prompt positions, N tokens of a slice, D hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from attrs import define, field
from torch import Tensor

from inferno.request.requests import Logprobs, Reduction
from inferno.sampling.finite import are_broken
from inferno.sampling.logprobs import logprobs_of


@define
class PromptLogprobs:
    """Log-probabilities of the computed part of a prompt."""

    request_id: str
    token_ids: tuple[int, ...]
    top: int
    found: list[Logprobs] = field(factory=list)
    broken: int | None = None
    """The first position whose logits are not finite."""

    def add(self, logits_PV: Tensor, start: int) -> None:
        """Score the tokens from position `start` on by the logits of those before them."""
        targets = self.token_ids[start : start + len(logits_PV)]
        self.found += logprobs_of(logits_PV, targets, self.top)
        if self.broken is None and bool((broken_P := are_broken(logits_PV)).any()):
            self.broken = start + int(broken_P.int().argmax())


@define
class Pooled:
    """Hidden states of the computed part of a prompt, reduced."""

    request_id: str
    num_tokens: int
    how: Reduction
    vector_D: Tensor = field(factory=lambda: torch.zeros((), dtype=torch.float64))
    """So far. Sums are of float64: how a prompt is cut into chunks does not show in float32."""

    def add(self, hidden_ND: Tensor, start: int) -> None:
        """Add the tokens of a slice that begins at position `start`."""
        if self.how in ("mean", "mean_sqrt_len"):
            self.vector_D = self.vector_D + hidden_ND.sum(0, dtype=torch.float64)
        elif self.how == "weighted_mean":
            x_ND = hidden_ND.double()
            weights_N = torch.arange(len(x_ND), dtype=x_ND.dtype, device=x_ND.device) + start + 1
            self.vector_D = self.vector_D + weights_N @ x_ND
        elif self.how == "max":
            best_D = hidden_ND.amax(0)
            self.vector_D = torch.maximum(self.vector_D, best_D) if start else best_D
        elif not start or self.how == "last":
            self.vector_D = hidden_ND[0 if self.how == "first" else -1].double()

    def result(self) -> Tensor:
        """Return the whole prompt's vector, in float32."""
        n = self.num_tokens
        weights = {"mean": n, "mean_sqrt_len": n**0.5, "weighted_mean": n * (n + 1) / 2}
        mean_D: Tensor = self.vector_D / weights.get(self.how, 1)
        return mean_D.float()
