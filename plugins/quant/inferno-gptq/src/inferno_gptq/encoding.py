"""Writes matrices as GPTQ: the inverse of `weight`. Format `gptq`: zero points minus one.

Suffixes: O rows, I columns, G groups of columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import Seen, TensorInfo, WriteOptions

if TYPE_CHECKING:
    from torch import Tensor

GROUP, DAMPING = 128, 0.01


@frozen
class GptqEncoding:
    """See `contracts.Encoding`."""

    bits: int
    group: int
    """Columns with one scale; -1: all of a row."""
    act_order: bool
    damping: float

    @classmethod
    def of(cls, bits: int, options: WriteOptions) -> GptqEncoding:
        """Return the encoding that the user asked for."""
        damping = DAMPING if options.damping is None else options.damping
        return cls(bits, options.group or GROUP, options.act_order, damping)

    def parts(self, path: str, shape: tuple[int, int]) -> Mapping[str, TensorInfo] | str:
        rows, columns = shape
        group = columns if self.group == -1 else self.group
        if columns % group or columns % 32 or rows % 32:
            return f"rows and columns must be divisible by 32, and columns by the group of {group}"
        groups, each = columns // group, 32 // self.bits
        shapes = {
            "qweight": ("int32", (columns // each, rows)),
            "qzeros": ("int32", (groups, rows // each)),
            "scales": ("float16", (groups, rows)),
            "g_idx": ("int32", (columns,)),
        }
        sizes = {"int32": 4, "float16": 2}
        return {
            part: TensorInfo(dtype, size, math.prod(size) * sizes[dtype])
            for part, (dtype, size) in shapes.items()
        }

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        left_out: dict[str, dict[str, Any]] = {
            f"-:^{re.escape(path)}$": {} for path in dense if path != "lm_head"
        }
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "sym": True,
            "desc_act": self.act_order,
            "damp_percent": self.damping,
            "checkpoint_format": "gptq",
            "lm_head": False,
            **({"dynamic": left_out} if left_out else {}),
        }

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        from inferno.nn import packed_words
        from inferno.ops.rounding import Grid, by_inputs, nearest

        columns = weight_OI.shape[1]
        grid = Grid(self.bits, columns if self.group == -1 else self.group, symmetric=True)
        if seen is None:
            rounded = nearest(weight_OI, grid)
        else:
            rounded = by_inputs(
                weight_OI, seen.gram_II, grid, damping=self.damping, act_order=self.act_order
            )
        return {
            "qweight": packed_words(rounded.codes_OI, self.bits).T.contiguous(),
            "qzeros": packed_words(rounded.zeros_OG.T.contiguous() - 1, self.bits),
            "scales": rounded.scales_OG.T.half().contiguous(),
            "g_idx": rounded.groups_I,
        }
