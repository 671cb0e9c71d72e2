"""FP8 weights with block scales, as in DeepSeek-V3 and Qwen3's FP8 checkpoints. Imports no torch
until one is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno import hookimpl
from inferno.contracts import QuantScheme, TensorInfo

LAYOUT = "fp8_blocks"


def owns(parts: Mapping[str, TensorInfo], quant_config: Mapping[str, Any]) -> bool:
    """Whether the parts are a float8 matrix with one float32 scale per block."""
    if set(parts) != {"weight", "weight_scale_inv"}:
        return False
    weight, scale = parts["weight"], parts["weight_scale_inv"]
    return (
        weight.dtype == "float8_e4m3fn"
        and scale.dtype == "float32"
        and len(weight.shape) == len(scale.shape) == 2
    )


def nbytes(parts: Mapping[str, TensorInfo], dtype: str) -> int:
    """Bytes in memory: those stored."""
    return sum(info.nbytes for info in parts.values())


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [
        QuantScheme(
            name="fp8-blocks",
            owns=owns,
            load="inferno_fp8.weight:load",
            nbytes=nbytes,
            layout=LAYOUT,
        )
    ]
