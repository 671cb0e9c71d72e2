"""MXFP4 weights as Hugging Face checkpoints store them, for inferno. Imports no torch until one is
loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno import hookimpl
from inferno.contracts import QuantScheme, TensorInfo

LAYOUT = "mxfp4"
"""ggml's block layout, so that kernels for it serve these weights too."""


def owns(parts: Mapping[str, TensorInfo], quant_config: Mapping[str, Any]) -> bool:
    """Whether the parts are blocks and scales, in a checkpoint declared as MXFP4."""
    ours = set(parts) == {"blocks", "scales"} and all(
        info.dtype == "uint8" for info in parts.values()
    )
    return ours and quant_config.get("quant_method") == "mxfp4"


def nbytes(parts: Mapping[str, TensorInfo], dtype: str) -> int:
    """Bytes in memory: as stored, 17 bytes for 32 values."""
    return sum(info.nbytes for info in parts.values())


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [
        QuantScheme(
            name="mxfp4-blocks",
            owns=owns,
            load="inferno_mxfp4.weight:load",
            nbytes=nbytes,
            layout=LAYOUT,
        )
    ]
