"""Weights of compressed-tensors checkpoints, as llm-compressor writes them, for inferno: packed
integers, int8 and FP8. Imports no torch until one is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno import hookimpl
from inferno.contracts import (
    Checkpoint,
    CheckpointView,
    HeldMatrix,
    IntLayout,
    QuantScheme,
    StoredMatrix,
    TensorInfo,
    fp8_layout,
)
from inferno_compressed_tensors.packing import METHOD, Packing, Refused


def refuses(stored: StoredMatrix) -> str | None:
    """Return why the matrix cannot be read, or contradicts its config; None if it can be read."""
    try:
        Packing.of(stored)
    except Refused as refused:
        return str(refused)
    return None


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return the matrix in a public layout; with act-order, beside the order of its columns."""
    packing = Packing.of(stored)
    rows, columns, layout = packing.rows, packing.columns, packing.layout
    if isinstance(layout, IntLayout):
        nbytes = layout.nbytes(rows, columns) + (8 * columns if packing.ordered else 0)
        return HeldMatrix(layout=layout.name, shape=(rows, columns), nbytes=nbytes)
    scales = -(-rows // layout[0]) * -(-columns // layout[1])
    return HeldMatrix(
        layout=fp8_layout(layout), shape=(rows, columns), nbytes=rows * columns + 4 * scales
    )


@frozen(eq=False)
class WithoutCacheScales(CheckpointView):
    """A checkpoint without its scales for a quantized cache, which is scaled otherwise here."""

    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> Any:
        return self.checkpoint.read(name)


def adapt(checkpoint: Checkpoint) -> Checkpoint:
    """Leave out the scales of queries, keys and values."""
    config = checkpoint.config.get("quantization_config")
    if not isinstance(config, Mapping) or config.get("quant_method") != METHOD:
        return checkpoint
    ends = tuple(f".{of}_{what}" for of in "qkv" for what in ("scale", "zero_point"))
    kept = {n: info for n, info in checkpoint.tensors.items() if not n.endswith(ends)}
    return WithoutCacheScales(checkpoint, kept)


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [
        QuantScheme(
            name=METHOD,
            refuses=refuses,
            holds=holds,
            load="inferno_compressed_tensors.weight:load",
            adapt=adapt,
        )
    ]
