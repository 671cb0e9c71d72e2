"""MXFP4 weights as Hugging Face checkpoints store them, for inferno. Imports no torch until one is
loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import HeldMatrix, QuantScheme, StoredMatrix

LAYOUT = "mxfp4"
"""ggml's block layout, so that kernels for it serve these weights too."""


def refuses(stored: StoredMatrix) -> str | None:
    """Read blocks and scales in a checkpoint declared as MXFP4."""
    if stored.quant_config.get("quant_method") != "mxfp4":
        return "it reads checkpoints whose quant_method is mxfp4"
    if set(stored.parts) != {"blocks", "scales"}:
        return "it reads matrices stored as blocks and scales"
    if any(info.dtype != "uint8" for info in stored.parts.values()):
        return "it reads blocks and scales of bytes (uint8)"
    return None


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """As stored: 17 bytes for 32 values."""
    shape = stored.parts["scales"].shape
    return HeldMatrix(
        layout=LAYOUT,
        shape=(shape[0], shape[1] * 32) if len(shape) == 2 else None,
        nbytes=sum(info.nbytes for info in stored.parts.values()),
        unit=(1, 32),
    )


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [
        QuantScheme(
            name="mxfp4-blocks",
            refuses=refuses,
            holds=holds,
            load="inferno_mxfp4.weight:load",
        )
    ]
