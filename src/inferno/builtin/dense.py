"""Unquantized matrices: one floating-point tensor, "weight"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from inferno.contracts import COMPUTE_DTYPES, DTYPE_BYTES, HeldMatrix, StoredMatrix

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn import Weight

STORED = frozenset({*COMPUTE_DTYPES, "float64"})


def refuses(stored: StoredMatrix) -> str | None:
    weight = stored.parts.get("weight")
    if set(stored.parts) != {"weight"} or weight is None or weight.dtype not in STORED:
        return "it reads a single tensor, weight, of floats"
    return None


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    shape = stored.parts["weight"].shape
    return HeldMatrix(
        shape=(shape[0], shape[1]) if len(shape) == 2 else None,
        nbytes=math.prod(shape) * DTYPE_BYTES[dtype],
        unit=(1, 1),
    )


def load(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Weight:
    import torch

    from inferno.nn import Dense

    return Dense(tensors["weight"].to(getattr(torch, dtype)))
