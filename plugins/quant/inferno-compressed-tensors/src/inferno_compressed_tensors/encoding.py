"""Writes matrices as compressed-tensors: 4 bits packed in groups, symmetric (`W4A16`).

Suffixes: O rows, I columns, G groups of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import Seen, TensorInfo, WriteOptions
from inferno_compressed_tensors.packing import METHOD

if TYPE_CHECKING:
    from torch import Tensor

GROUP, DAMPING, BITS = 128, 0.01, 4


@frozen
class PackedEncoding:
    """See `contracts.Encoding`."""

    group: int
    """Columns with one scale; -1: all of a row."""
    damping: float

    @classmethod
    def of(cls, options: WriteOptions) -> PackedEncoding:
        damping = DAMPING if options.damping is None else options.damping
        return cls(options.group or GROUP, damping)

    def parts(self, path: str, shape: tuple[int, int]) -> Mapping[str, TensorInfo] | str:
        rows, columns = shape
        group = self._group(columns)
        if columns % group or columns % 8:
            return f"columns must be divisible by 8 and by the group of {group}"
        groups = columns // group
        return {
            "weight_packed": TensorInfo("int32", (rows, columns // 8), rows * columns // 2),
            "weight_scale": TensorInfo("float16", (rows, groups), rows * groups * 2),
            "weight_shape": TensorInfo("int64", (2,), 16),
        }

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        weights = {
            "num_bits": BITS,
            "type": "int",
            "symmetric": True,
            "strategy": "channel" if self.group == -1 else "group",
            "group_size": None if self.group == -1 else self.group,
            "dynamic": False,
        }
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": None,
            "output_activations": None,
        }
        return {
            "quant_method": METHOD,
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(dense),
            "kv_cache_scheme": None,
        }

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        import torch

        from inferno.nn import packed_words
        from inferno.ops.rounding import Grid, by_inputs, nearest

        grid = Grid(BITS, self._group(weight_OI.shape[1]), symmetric=True)
        if seen is None:
            rounded = nearest(weight_OI, grid)
        else:
            rounded = by_inputs(weight_OI, seen.gram_II, grid, damping=self.damping)
        return {
            "weight_packed": packed_words(rounded.codes_OI, BITS),
            "weight_scale": rounded.scales_OG.half(),
            "weight_shape": torch.tensor(weight_OI.shape),
        }

    def _group(self, columns: int) -> int:
        return columns if self.group == -1 else self.group
