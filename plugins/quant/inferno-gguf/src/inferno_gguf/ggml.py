"""ggml's tensor types: their ids in a file, and the values and bytes of a block. Imports nothing
heavy.

Equal to gguf-py's `GGML_QUANT_SIZES`, which a test checks; importing gguf-py takes as long as
opening a file.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class BlockType:
    """A ggml tensor type. `name` is ggml's in lower case, and the part that a module's packed
    matrix is stored as."""

    name: str
    number: int
    values: int
    """Values in a block."""
    nbytes: int
    """Bytes of a block."""
    dtype: str | None = None
    """torch's name of the type if values are stored singly; None: packed."""
    swapped: tuple[int, ...] | None = None
    """Packed: offsets of the 2-byte values in a block, which are in the file's byte order; None:
    unknown."""


TYPES: tuple[BlockType, ...] = (
    BlockType("f32", 0, 1, 4, "float32"),
    BlockType("f16", 1, 1, 2, "float16"),
    BlockType("q4_0", 2, 32, 18, swapped=(0,)),
    BlockType("q4_1", 3, 32, 20, swapped=(0, 2)),
    BlockType("q5_0", 6, 32, 22),
    BlockType("q5_1", 7, 32, 24),
    BlockType("q8_0", 8, 32, 34, swapped=(0,)),
    BlockType("q2_k", 10, 256, 84, swapped=(80, 82)),
    BlockType("q3_k", 11, 256, 110, swapped=(108,)),
    BlockType("q4_k", 12, 256, 144, swapped=(0, 2)),
    BlockType("q5_k", 13, 256, 176, swapped=(0, 2)),
    BlockType("q6_k", 14, 256, 210, swapped=(208,)),
    BlockType("iq2_xxs", 16, 256, 66),
    BlockType("iq2_xs", 17, 256, 74),
    BlockType("iq3_xxs", 18, 256, 98),
    BlockType("iq1_s", 19, 256, 50),
    BlockType("iq4_nl", 20, 32, 18, swapped=(0,)),
    BlockType("iq3_s", 21, 256, 110),
    BlockType("iq2_s", 22, 256, 82),
    BlockType("iq4_xs", 23, 256, 136, swapped=(0, 2)),
    BlockType("i8", 24, 1, 1, "int8"),
    BlockType("i16", 25, 1, 2, "int16"),
    BlockType("i32", 26, 1, 4, "int32"),
    BlockType("i64", 27, 1, 8, "int64"),
    BlockType("f64", 28, 1, 8, "float64"),
    BlockType("iq1_m", 29, 256, 56),
    BlockType("bf16", 30, 1, 2, "bfloat16"),
    BlockType("tq1_0", 34, 256, 54, swapped=(52,)),
    BlockType("tq2_0", 35, 256, 66, swapped=(64,)),
    BlockType("mxfp4", 39, 32, 17, swapped=()),
    BlockType("nvfp4", 40, 64, 36, swapped=()),
)
"""Types that a file may contain. q8_1 and q8_k are for activations only; ids in between are of
types that ggml withdrew."""

BY_NUMBER: Mapping[int, BlockType] = {t.number: t for t in TYPES}
BY_NAME: Mapping[str, BlockType] = {t.name: t for t in TYPES}

PACKED = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"),
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "mxfp4"),
)
"""Types that stay packed in memory (`blocks.Blocks`)."""

RECODED: Mapping[str, str] = {"iq4_xs": "iq4_nl"}
"""Types that become another packed type at load (`recoded`)."""

UNPACKED = (
    "iq1_s",
    "iq1_m",
    "iq2_xxs",
    "iq2_xs",
    "iq2_s",
    "iq3_xxs",
    "iq3_s",
    "tq1_0",
    "tq2_0",
    "nvfp4",
)
"""Types that are dequantized once, at load."""

PACKABLE: Mapping[str, tuple[str, ...]] = {
    "q4_0": (),
    "q4_1": (),
    "q5_0": (),
    "q5_1": (),
    "q8_0": (),
    "q2_k": ("q4_0",),
    "q3_k": ("q4_0",),
    "q4_k": ("q5_0",),
    "q5_k": ("q5_1",),
    "q6_k": ("q8_0",),
    "iq4_nl": (),
}
"""Types that dense matrices can be quantized to, and what `llama-quantize` takes instead for rows
that are not whole blocks of 256."""
