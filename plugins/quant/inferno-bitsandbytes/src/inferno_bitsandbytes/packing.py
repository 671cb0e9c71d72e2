"""How a bitsandbytes matrix is packed: read from the headers and compared with the config. Imports
no torch.

4 bits: `weight` uint8 (O, I / 2), `absmax` with the scale of each block of consecutive values,
`quant_map` (16), and JSON in `bitsandbytes__nf4` or `__fp4`. Double quantization has `absmax` in
uint8, with `nested_absmax` and `nested_quant_map` (256). 8 bits: `weight` int8 (O, I), `SCB` (O).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno.contracts import (
    COMPUTE_DTYPES,
    IntLayout,
    Refused,
    StoredMatrix,
    TableLayout,
    TensorInfo,
)
from inferno_bitsandbytes.checkpoint import STATES

METHOD = "bitsandbytes"
INT8 = {"weight", "SCB"}
BITS4 = {"weight", "absmax", "quant_map"}
NESTED = {"nested_absmax", "nested_quant_map"}
SMALLEST = 16
"""Values of the smallest block that is looked for."""


@frozen
class Packing:
    rows: int
    columns: int
    kind: str
    """`nf4`, `fp4` or `int8`."""
    block: int
    """Consecutive values with one scale; the last block may have fewer."""
    nested: bool
    """Whether the scales are quantized too."""

    @property
    def layout(self) -> TableLayout | IntLayout:
        """The layout in memory. Blocks that do not end with a row are divided."""
        if self.kind == "int8":
            return IntLayout.fitting(8, self.columns, symmetric=True)
        return TableLayout.fitting(self.kind, math.gcd(self.block, self.columns))

    @classmethod
    def of(cls, stored: StoredMatrix) -> Packing:
        """Raises Refused."""
        parts, config = stored.parts, stored.quant_config
        if config.get("quant_method", METHOD) != METHOD:
            raise Refused(f"it reads checkpoints whose quant_method is {METHOD}")
        if INT8 <= set(parts) <= INT8 | {"weight_format"}:
            return cls._of_int8(parts, config)
        states = [state for state in STATES if state in parts]
        nested = bool(NESTED & set(parts))
        if len(states) != 1 or set(parts) != BITS4 | set(states) | (NESTED if nested else set()):
            raise Refused(
                "it reads matrices stored as weight and SCB, or as weight, absmax, quant_map and "
                "quant_state"
            )
        kind = states[0].rpartition("_")[2]
        if config.get("load_in_8bit") is True or config.get("_load_in_8bit") is True:
            raise Refused("quantization_config says load_in_8bit, but codes of 4 bits are stored")
        quant_type = config.get("bnb_4bit_quant_type", kind)
        if quant_type != kind:
            raise Refused(f"bnb_4bit_quant_type is {quant_type!r}, but {kind} is stored")
        return cls._of_bits4(parts, kind, nested=nested)

    @classmethod
    def _of_int8(cls, parts: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> Packing:
        if config.get("load_in_4bit") is True or config.get("_load_in_4bit") is True:
            raise Refused("quantization_config says load_in_4bit, but codes of 8 bits are stored")
        weight, scales = parts["weight"], parts["SCB"]
        if weight.dtype != "int8" or scales.dtype not in COMPUTE_DTYPES:
            raise Refused("it reads weights in int8 with SCB in floats")
        if len(weight.shape) != 2 or 0 in weight.shape:
            raise Refused("it reads matrices, of two dimensions")
        rows, columns = weight.shape
        if scales.shape != (rows,):
            raise Refused(f"SCB is {scales.shape}, but the matrix has {rows} rows")
        if "weight_format" in parts and math.prod(parts["weight_format"].shape) != 1:
            raise Refused("weight_format must be a single value")
        return cls(rows, columns, "int8", columns, nested=False)

    @classmethod
    def _of_bits4(cls, parts: Mapping[str, TensorInfo], kind: str, *, nested: bool) -> Packing:
        weight, absmax = parts["weight"], parts["absmax"]
        if weight.dtype != "uint8" or len(weight.shape) != 2 or 0 in weight.shape:
            raise Refused("it reads codes of 4 bits in bytes, with the shape of quant_state")
        wanted = {"quant_map": (16,), "nested_quant_map": (256,)}
        for part, shape in wanted.items():
            if part in parts and parts[part].shape != shape:
                raise Refused(f"{part} is {parts[part].shape}, not {shape}")
        scales = {"nested_absmax", "nested_quant_map"} if nested else {"absmax"}
        if any(parts[part].dtype not in COMPUTE_DTYPES for part in scales | {"quant_map"}):
            raise Refused("it reads scales and tables in floats")
        if nested and absmax.dtype != "uint8":
            raise Refused("it reads quantized scales in bytes")
        rows, columns = weight.shape[0], weight.shape[1] * 2
        (blocks,) = absmax.shape if len(absmax.shape) == 1 else (0,)
        block = SMALLEST
        while blocks and -(-rows * columns // block) > blocks:
            block *= 2
        if -(-rows * columns // block) != blocks:
            raise Refused(f"absmax is {absmax.shape}, not a scale for each block of 64 values")
        return cls(rows, columns, kind, block, nested)
