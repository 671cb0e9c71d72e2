"""Answers the plan's questions from headers: whether a scheme owns a matrix, and its size in
memory. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inferno.contracts import DTYPE_BYTES, TensorInfo
from inferno_gguf.ggml import BY_NAME


def owns(layout: str, parts: Mapping[str, TensorInfo], quant_config: Mapping[str, Any]) -> bool:
    """Whether the parts are one packed matrix: a tensor of bytes whose part names the layout."""
    return set(parts) == {layout} and parts[layout].dtype == "uint8"


def packed_nbytes(parts: Mapping[str, TensorInfo], dtype: str) -> int:
    """Bytes of a matrix that stays packed."""
    return sum(info.nbytes for info in parts.values())


def dense_nbytes(parts: Mapping[str, TensorInfo], dtype: str) -> int:
    """Bytes of a matrix that is unpacked at load."""
    [(layout, info)] = parts.items()
    return (
        math.prod(info.shape)
        // BY_NAME[layout].nbytes
        * BY_NAME[layout].values
        * DTYPE_BYTES[dtype]
    )
