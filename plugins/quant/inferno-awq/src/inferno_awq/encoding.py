"""Writes matrices as AWQ, version `gemm`: the inverse of `weight`, and the search for scales by
which a layer's important columns are rounded less (arXiv:2306.00978).

Suffixes: O rows, I columns, G groups of columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import Seen, TensorInfo, WriteOptions

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 128
RATIOS = tuple(number / 20 for number in range(20))
"""Exponents of the activations' means that are tried."""


@frozen
class AwqEncoding:
    """See `contracts.Encoding` and `contracts.Scaling`."""

    group: int
    """Columns with one scale; -1: all of a row."""

    @classmethod
    def of(cls, options: WriteOptions) -> AwqEncoding:
        return cls(options.group or GROUP)

    def parts(self, path: str, shape: tuple[int, int]) -> Mapping[str, TensorInfo] | str:
        rows, columns = shape
        group = self._group(columns)
        if rows % 8 or columns % group:
            return f"rows must be divisible by 8, and columns by the group of {group}"
        groups = columns // group
        return {
            "qweight": TensorInfo("int32", (columns, rows // 8), columns * rows // 2),
            "qzeros": TensorInfo("int32", (groups, rows // 8), groups * rows // 2),
            "scales": TensorInfo("float16", (groups, rows), groups * rows * 2),
        }

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": self.group,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": list(dense) or None,
        }

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        from inferno.ops.rounding import nearest

        rounded = nearest(weight_OI, self._grid(weight_OI))
        return {
            "qweight": _words(rounded.codes_OI.T),
            "qzeros": _words(rounded.zeros_OG.T),
            "scales": rounded.scales_OG.T.half().contiguous(),
        }

    def scale(self, readers: Sequence[tuple[Tensor, Seen]]) -> Tensor:
        """Return the power of the inputs' mean sizes with which the products change least."""
        count = sum(seen.count for _, seen in readers)
        mean_I = readers[0][1].mean_I.new_zeros(readers[0][0].shape[1])
        for _, seen in readers:
            mean_I += seen.mean_I * (seen.count / count)
        best_I, least = mean_I.new_ones(len(mean_I)), math.inf
        for ratio in RATIOS:
            scale_I = mean_I.pow(ratio).clamp(min=1e-4)
            scale_I = scale_I / (scale_I.max() * scale_I.min()).sqrt()
            loss = sum(self._loss(weight_OI, scale_I, seen) for weight_OI, seen in readers)
            if math.isfinite(loss) and loss < least:
                best_I, least = scale_I, loss
        return best_I

    def _loss(self, weight_OI: Tensor, scale_I: Tensor, seen: Seen) -> float:
        """Return the squared error of the products, summed over all inputs."""
        from inferno.ops.rounding import nearest

        scaled_OI = weight_OI.float() * scale_I
        off_OI = nearest(scaled_OI, self._grid(weight_OI)).values() / scale_I - weight_OI.float()
        return float(((off_OI @ seen.gram_II) * off_OI).sum())

    def _group(self, columns: int) -> int:
        return columns if self.group == -1 else self.group

    def _grid(self, weight_OI: Tensor) -> Any:
        from inferno.ops.rounding import Grid

        return Grid(4, self._group(weight_OI.shape[1]), symmetric=False)


def _words(codes_RO: Tensor) -> Tensor:
    """Return the words of `gemm`: (R, O / 8)."""
    import torch

    from inferno.nn import packed_words
    from inferno_awq.weight import PLACES

    codes_RW8 = codes_RO.unflatten(1, (-1, 8))
    stored_RW8 = torch.empty_like(codes_RW8, memory_format=torch.contiguous_format)
    stored_RW8[..., list(PLACES)] = codes_RW8
    return packed_words(stored_RW8.flatten(1), 4)
