"""Unquantized matrices: one floating-point tensor, "weight"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferno.contracts import COMPUTE_DTYPES, DTYPE_BYTES, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn import Weight

STORED = frozenset({*COMPUTE_DTYPES, "float64"})


def owns(parts: Mapping[str, TensorInfo], quant_config: Mapping[str, Any]) -> bool:
    return set(parts) == {"weight"} and parts["weight"].dtype in STORED


def load(parts: Mapping[str, Tensor], *, quant_config: Mapping[str, Any], dtype: str) -> Weight:
    import torch

    from inferno.nn import Dense

    return Dense(parts["weight"].to(getattr(torch, dtype)))


def nbytes(parts: Mapping[str, TensorInfo], dtype: str) -> int:
    return math.prod(parts["weight"].shape) * DTYPE_BYTES[dtype]
