"""Statistics over all scored positions, as llama.cpp computes them.

Suffix: P scored positions.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from attrs import frozen

Array = np.ndarray[Any, Any]


@frozen(kw_only=True)
class Perplexity:
    """e to the mean negative log-likelihood of the scored tokens."""

    value: float
    error: float
    """Standard error: that of the mean log-likelihood, times the perplexity."""
    nll: float
    """The mean negative log-likelihood, in nats per token."""

    @classmethod
    def of(cls, nll_P: Array) -> Self:
        nll = float(nll_P.mean())
        value = math.exp(nll)
        return cls(value=value, error=value * _error(nll_P), nll=nll)


@frozen(kw_only=True)
class Divergence:
    """How far a model's next-token distributions are from another one's, the reference."""

    mean: float
    """KL divergence of the model from the reference, in nats per token."""
    error: float
    """Standard error of the mean."""
    median: float
    p99: float
    max: float
    top1: float
    """Share of positions at which both have the same most likely token."""
    top1_error: float
    """Its standard error."""
    flips: int
    """Positions at which they do not."""
    lost: int
    """Flips at which the reference's most likely token is the text's."""
    gained: int
    """Flips at which the model's most likely token is the text's."""
    perplexity_ratio: float
    """The model's perplexity over the reference's."""
    ratio_error: float
    """Its standard error. It is small if both models err on the same tokens."""

    @classmethod
    def of(
        cls,
        kl_P: Array,
        *,
        nll_P: Array,
        reference_nll_P: Array,
        best_P: Array,
        reference_best_P: Array,
        target_P: Array,
    ) -> Self:
        """`best_P` are the most likely tokens, `target_P` the text's."""
        differs_P, count = best_P != reference_best_P, len(kl_P)
        flips = int(differs_P.sum())
        top1 = 1 - flips / count
        change_P = nll_P - reference_nll_P
        ratio = math.exp(float(change_P.mean()))
        return cls(
            mean=float(kl_P.mean()),
            error=_error(kl_P),
            median=float(np.median(kl_P)),
            p99=float(np.quantile(kl_P, 0.99)),
            max=float(kl_P.max()),
            top1=top1,
            top1_error=math.sqrt(top1 * (1 - top1) / max(1, count - 1)),
            flips=flips,
            lost=int((differs_P & (reference_best_P == target_P)).sum()),
            gained=int((differs_P & (best_P == target_P)).sum()),
            perplexity_ratio=ratio,
            ratio_error=ratio * _error(change_P),
        )


def _error(values_P: Array) -> float:
    """Return the standard error of the mean: of the population's variance, over count - 1."""
    return math.sqrt(float(values_P.var()) / max(1, len(values_P) - 1))
