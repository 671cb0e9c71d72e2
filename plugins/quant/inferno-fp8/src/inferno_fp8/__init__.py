"""FP8 weights of Hugging Face checkpoints: one scale for the matrix, for each row, or for each
block, as in DeepSeek-V3's and Qwen3's. Imports no torch until one is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferno import hookimpl
from inferno.contracts import (
    COMPUTE_DTYPES,
    Along,
    Checkpoint,
    HeldMatrix,
    QuantScheme,
    StoredMatrix,
    TensorInfo,
    Writer,
    fp8_layout,
    without,
)

METHODS = ("fp8", "fbgemm_fp8")
SCALES = ("weight_scale_inv", "weight_scale")
"""Both are factors of the values, in spite of the first one's name."""
ACTIVATIONS = ("input_scale", "activation_scale", "input_scale_ub")
"""Scales of static activations. Activations stay in the compute dtype here, which is finer."""


def refuses(stored: StoredMatrix) -> str | None:
    """Read a float8 matrix with scales of a known shape."""
    parts, method = stored.parts, stored.quant_config.get("quant_method", "fp8")
    if method not in METHODS:
        return f"it reads checkpoints whose quant_method is {' or '.join(METHODS)}"
    scales = set(parts) & set(SCALES)
    if len(scales) != 1 or set(parts) - {"weight", *scales, *ACTIVATIONS} or "weight" not in parts:
        return f"it reads matrices stored as weight and {' or '.join(SCALES)}"
    weight, scale = parts["weight"], parts[scales.pop()]
    if weight.dtype != "float8_e4m3fn" or scale.dtype not in COMPUTE_DTYPES:
        return "it reads weights in float8_e4m3fn with scales in floats"
    if len(weight.shape) != 2 or 0 in weight.shape:
        return "it reads matrices, of two dimensions"
    if (block := _block_size(stored.quant_config)) is None:
        return "weight_block_size of quantization_config must be two sizes, as [128, 128]"
    if scale.shape not in _scale_shapes(weight.shape, block):
        return (
            f"scales of {scale.shape} are not one for the matrix of {weight.shape}, one for each "
            f"row, or one for each block of {block[0]} x {block[1]}, the weight_block_size"
        )
    return None


def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
    """As stored, with scales in float32; a scale of the whole matrix becomes one for each row."""
    rows, columns = stored.parts["weight"].shape
    block = block_of(stored)
    scales = -(-rows // block[0]) * -(-columns // block[1])
    return HeldMatrix(
        layout=fp8_layout(block),
        shape=(rows, columns),
        nbytes=rows * columns + 4 * scales,
        unit=block if block[0] > 1 else (1, 1),
        along=_along(stored, block),
    )


def _along(stored: StoredMatrix, block: tuple[int, int]) -> dict[str, Along]:
    """As `HeldMatrix.along`; a scale of the whole matrix is that of any part."""
    scale = scale_part(stored.parts)
    along: dict[str, Along] = {"weight": ((0, 1, 1), (1, 1, 1))}
    if block[0] > 1:
        return along | {scale: ((0, block[0], 1), (1, block[1], 1))}
    shape = stored.parts[scale].shape
    by_row = shape[:1] == stored.parts["weight"].shape[:1]
    return along | {scale: ((0, 1, 1) if by_row else None, None)}


def packs(shape: tuple[int, int], dtype: str) -> HeldMatrix:
    """Return what a dense matrix becomes: a scale for each row."""
    rows, columns = shape
    layout, nbytes = fp8_layout((1, columns)), rows * (columns + 4)
    return HeldMatrix(layout=layout, shape=shape, nbytes=nbytes, unit=(1, 1))


def block_of(stored: StoredMatrix) -> tuple[int, int]:
    """Return rows and columns of a block of the loaded matrix."""
    weight, scale = stored.parts["weight"].shape, stored.parts[scale_part(stored.parts)].shape
    rows, columns = weight
    block = _block_size(stored.quant_config) or (128, 128)
    *by_row, by_block = _scale_shapes((rows, columns), block)
    return block if scale == by_block and scale not in by_row else (1, columns)


def scale_part(parts: Mapping[str, TensorInfo]) -> str:
    """Return the name of the part with the scales."""
    return next(part for part in SCALES if part in parts)


def _block_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    given = config.get("weight_block_size")
    if given is None:
        return 128, 128
    if not isinstance(given, Sequence) or len(given) != 2:
        return None
    rows, columns = given
    return (rows, columns) if all(type(n) is int and n > 0 for n in (rows, columns)) else None


def _scale_shapes(weight: tuple[int, ...], block: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that scales may have: of the matrix, of rows, of blocks."""
    rows, columns = weight
    by_block = (-(-rows // block[0]), -(-columns // block[1]))
    return (), (1,), (1, 1), (rows,), (rows, 1), by_block


def adapt(checkpoint: Checkpoint) -> Checkpoint:
    """Leave out the scales of keys and values of a checkpoint in FP8."""
    config = checkpoint.config.get("quantization_config")
    if not isinstance(config, Mapping) or config.get("quant_method") not in METHODS:
        return checkpoint
    ends = (".k_scale", ".v_scale", ".kv_scale")
    return without(checkpoint, ends)


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [
        QuantScheme(
            name="fp8",
            refuses=refuses,
            holds=holds,
            load="inferno_fp8.weight:load",
            adapt=adapt,
            pack="inferno_fp8.weight:pack",
            packs=packs,
            layout=fp8_layout((1, 1)),
            spellings=("fp8_e4m3", "float8", "e4m3"),
        )
    ]


@hookimpl
def inferno_writers() -> list[Writer]:
    return [
        Writer(
            name="fp8",
            describe="a Hugging Face folder in FP8, blocks of 128 x 128",
            encoding="inferno_fp8.encoding:Fp8Encoding.of",
        )
    ]
