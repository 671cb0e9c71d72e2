"""Names of types as torch's."""

from __future__ import annotations

import torch

from inferno.plan import Plan


def dtype_of(plan: Plan) -> torch.dtype:
    """Return the type that a plan computes in."""
    dtype = getattr(torch, plan.dtype)
    assert isinstance(dtype, torch.dtype), "plan.dtype is one of COMPUTE_DTYPES"
    return dtype
