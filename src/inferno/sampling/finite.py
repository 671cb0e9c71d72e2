"""Rows of logits that are not a distribution: with NaN or +inf, or with no finite number at all.

Damaged weights make them, and a compute or cache type that is too narrow for the model's numbers. A
request with such a row ends: every token drawn for it would be noise. -inf for some tokens is
legal.

Suffixes: S rows, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from inferno.errors import NonFiniteError
from inferno.plan import Plan


def are_broken(logits_SV: Tensor) -> Tensor:
    """Return whether each row is not a distribution, (S,)."""
    top_S = logits_SV.amax(-1)  # passes NaN on
    return top_S - top_S != 0


def not_finite(plan: Plan, who: str, position: int) -> NonFiniteError:
    """Return the error that ends a request, or whatever else `who` names, where the model's output
    for the token at `position` is not finite."""
    cache = {use.need.cache_dtype for use in plan.attention} - {"auto", plan.dtype}
    types = f"compute type {plan.dtype}, cache type {' and '.join(sorted(cache)) or plan.dtype}"
    tries = ["--kv-cache-dtype auto"] if cache else []
    tries += [f"--dtype {'bfloat16' if plan.dtype == 'float16' else 'float32'}"]
    if plan.dtype == "float32":
        tries.pop()
    remedy = (
        f"Try {' and '.join(tries)}; if that changes nothing, the weights are damaged."
        if tries
        else "The weights are damaged: get them again, or convert them with another scheme."
    )
    return NonFiniteError(
        f"{who}: the model's output for token {position} is NaN or infinite ({types})",
        remedy,
    )
