"""Weights of compressed-tensors checkpoints, as llm-compressor writes them, for inferno: packed
integers, int8 and FP8. Imports no torch until one is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from inferno import hookimpl
from inferno.contracts import (
    Checkpoint,
    HeldMatrix,
    QuantScheme,
    StoredMatrix,
    Writer,
    fp8_layout,
    refusal_of,
    without,
)
from inferno.errors import UnsupportedError
from inferno_compressed_tensors.packing import METHOD, Packing

refuses = refusal_of(Packing.of)


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """Return the matrix in a public layout; with act-order, beside the order of its columns."""
    packing = Packing.of(stored)
    layout = packing.layout
    name = fp8_layout(layout) if isinstance(layout, tuple) else layout.name
    shape = packing.rows, packing.columns
    along = packing.along(stored)
    return HeldMatrix(
        layout=name, shape=shape, nbytes=packing.nbytes, unit=packing.unit, along=along
    )


def adapt(checkpoint: Checkpoint) -> Checkpoint:
    """Leave out the scales of queries, keys and values. Raises UnsupportedError for models that
    rotate activations: without that, their weights are those of another model."""
    config = checkpoint.config.get("quantization_config")
    if not isinstance(config, Mapping) or config.get("quant_method") != METHOD:
        return checkpoint
    if config.get("transform_config"):
        raise UnsupportedError(
            "quantization_config has a transform_config: rotations at run time, as of SpinQuant or "
            "QuIP, are not implemented",
            "Use a checkpoint without it: transforms that are merged into the weights need none.",
        )
    ends = tuple(f".{of}_{what}" for of in "qkv" for what in ("scale", "zero_point"))
    return without(checkpoint, ends)


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


@hookimpl
def inferno_writers() -> list[Writer]:
    return [
        Writer(
            name="compressed-tensors",
            describe="a Hugging Face folder in compressed-tensors, 4 bits packed",
            encoding="inferno_compressed_tensors.encoding:PackedEncoding.of",
            options=frozenset({"group", "damping"}),
            groups=(128, 64, 32),
            calibrated=True,
        )
    ]
