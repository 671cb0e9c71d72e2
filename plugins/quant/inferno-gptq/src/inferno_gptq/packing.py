"""How a GPTQ matrix is packed: read from the config, with the module's overrides, and checked
against the headers. Imports no torch.

A matrix of O rows and I columns is stored as `qweight` int32 (I · bits / 32, O), `qzeros` int32
(G, O · bits / 32), `scales` (G, O), and the group of each column, `g_idx` (I).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno.configs import PatternError, begins_with
from inferno.contracts import COMPUTE_DTYPES, Along, IntLayout, Refused, StoredMatrix, TensorInfo

PARTS = {"qweight", "qzeros", "scales"}
FORMATS = ("gptq", "gptq_v2")
_SHOWN = 100
"""Characters of a pattern that a message repeats."""


@frozen
class Packing:
    rows: int
    columns: int
    bits: int
    """2, 3, 4 or 8 per value."""
    group: int
    """Columns with one scale, in the order of `g_idx`; the last group may have fewer."""
    symmetric: bool
    """Whether every zero point is declared to be half of the range."""
    zero_minus_one: bool
    """Whether zero points are stored minus one: format `gptq`, not `gptq_v2`."""
    ordered: bool
    """Whether columns were quantized in another order than they are stored in: act-order."""

    @property
    def layout(self) -> IntLayout:
        """The layout in memory: 2 and 3 bits become 4, as kernels have no fewer."""
        size = math.gcd(self.group, self.columns)  # the last group may be cut off
        return IntLayout.fitting(self.bits, size, symmetric=self.bits == 8 and self.symmetric)

    @property
    def along(self) -> dict[str, Along]:
        """As `HeldMatrix.along`."""
        shared = math.gcd(32, self.bits)
        words, by_group = (32 // shared, self.bits // shared), (0, self.group, 1)
        return {
            "qweight": ((1, 1, 1), (0, *words)),
            "scales": ((1, 1, 1), by_group),
            "qzeros": ((1, *words), by_group),
            "g_idx": (None, (0, 1, 1)),
        }

    @classmethod
    def of(cls, stored: StoredMatrix) -> Packing:
        """Raises Refused."""
        parts, config = stored.parts, stored.quant_config
        # quantize_config.json does not have the method
        if config.get("quant_method", "gptq") != "gptq":
            raise Refused("it reads checkpoints whose quant_method is gptq")
        form = config.get("checkpoint_format", config.get("format", "gptq"))
        if form not in FORMATS:
            raise Refused(f"it reads the formats {' and '.join(FORMATS)}, not {form!r}")
        _check_parts(parts)
        settings = overridden(config, stored.path)
        bits, group = settings.get("bits"), settings.get("group_size", -1)
        if type(bits) is not int or bits not in (2, 3, 4, 8):
            raise Refused(f"it reads 2, 3, 4 and 8 bits, and quantization_config says {bits!r}")
        if type(group) is not int or not (group == -1 or group > 0):
            raise Refused(f"group_size must be a number of columns or -1, not {group!r}")
        words, rows = parts["qweight"].shape
        columns = words * 32 // bits
        group = columns if group == -1 else min(group, columns)
        _check_shapes(parts, rows, columns, bits, group)
        symmetric, ordered = settings.get("sym", True), settings.get("desc_act", False)
        if not isinstance(symmetric, bool) or not isinstance(ordered, bool):
            raise Refused("sym and desc_act of quantization_config must be true or false")
        if (
            bits == 3
            and form == "gptq"
            and not symmetric
            and "gptqmodel" in str(config.get("meta"))
        ):
            raise Refused(
                "gptqmodel wrote zero points of 3 bits into each other: save it as gptq_v2 instead"
            )
        ordered = ordered and columns > group
        if ordered and "g_idx" not in parts:
            raise Refused("desc_act of quantization_config is true, but g_idx is not stored")
        return cls(rows, columns, bits, group, symmetric, form == "gptq", ordered)


def _check_parts(parts: Mapping[str, TensorInfo]) -> None:
    if set(parts) - {"g_idx"} != PARTS:
        raise Refused("it reads matrices stored as qweight, qzeros, scales and g_idx")
    if any(len(parts[part].shape) != 2 or 0 in parts[part].shape for part in PARTS):
        raise Refused("qweight, qzeros and scales must have two dimensions each")
    if parts["qweight"].dtype != "int32" or parts["qzeros"].dtype != "int32":
        raise Refused("codes must be packed in int32")
    if (kind := parts["scales"].dtype) not in COMPUTE_DTYPES:
        raise Refused(f"scales must be {', '.join(COMPUTE_DTYPES)}, not {kind}")
    if "g_idx" in parts and parts["g_idx"].dtype not in ("int32", "int64"):
        raise Refused("g_idx must be of integers")


def _check_shapes(
    parts: Mapping[str, TensorInfo], rows: int, columns: int, bits: int, group: int
) -> None:
    groups = -(-columns // max(1, group))
    wanted = {
        "qweight": (columns * bits // 32, rows),
        "qzeros": (groups, -(-rows * bits // 32)),
        "scales": (groups, rows),
        "g_idx": (columns,),
    }
    for part, info in parts.items():
        if info.shape != wanted[part]:
            raise Refused(
                f"{part} is {info.shape}, but {bits} bits in groups of {group} columns, as "
                f"quantization_config says, make it {wanted[part]}"
            )


def overridden(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the settings of a module: `dynamic` has overrides by a pattern of its path, the first
    that matches counts. Raises Refused."""
    dynamic = config.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise Refused("dynamic of quantization_config must be an object")
    for pattern, changes in dynamic.items():
        try:
            is_match = begins_with(path, pattern.removeprefix("+:").removeprefix("-:"))
        except PatternError as error:
            raise Refused(f"dynamic has {pattern[:_SHOWN]!r}, {error}") from None
        if is_match and pattern.startswith("-:"):
            raise Refused(f"dynamic says by {pattern!r} that this module is not quantized")
        if is_match:
            if not isinstance(changes, Mapping):
                raise Refused(f"dynamic must have an object for {pattern!r}")
            return {**config, **changes}
    return config
