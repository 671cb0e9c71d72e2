"""FP8 weights with block scales, as in DeepSeek-V3 and Qwen3's FP8 checkpoints. Imports no torch
until one is loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import HeldMatrix, QuantScheme, StoredMatrix

LAYOUT = "fp8_blocks"


def refuses(stored: StoredMatrix) -> str | None:
    """Read a float8 matrix with one float32 scale per block."""
    parts = stored.parts
    if set(parts) != {"weight", "weight_scale_inv"}:
        return "it reads matrices stored as weight and weight_scale_inv"
    weight, scale = parts["weight"], parts["weight_scale_inv"]
    if weight.dtype != "float8_e4m3fn" or scale.dtype != "float32":
        return "it reads weights in float8_e4m3fn with scales in float32"
    if not len(weight.shape) == len(scale.shape) == 2:
        return "it reads matrices with a scale for each block of rows and columns"
    return None


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """As stored."""
    rows, columns = stored.parts["weight"].shape
    nbytes = sum(info.nbytes for info in stored.parts.values())
    return HeldMatrix(layout=LAYOUT, shape=(rows, columns), nbytes=nbytes)


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [
        QuantScheme(
            name="fp8-blocks",
            refuses=refuses,
            holds=holds,
            load="inferno_fp8.weight:load",
        )
    ]
