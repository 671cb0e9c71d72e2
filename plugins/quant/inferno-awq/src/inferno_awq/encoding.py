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
PAIRS = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ("mlp.up_proj", ("mlp.down_proj",)),
)
"""Modules of a layer, by the names of most families: whatever scales the rows of the first is
undone by scaling the columns of the others. A layer with other names keeps its scales."""


@frozen
class AwqEncoding:
    """See `contracts.Encoding`."""

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
        from inferno.nn import nearest

        rounded = nearest(weight_OI, self._grid(weight_OI))
        return {
            "qweight": _words(rounded.codes_OI.T),
            "qzeros": _words(rounded.zeros_OG.T),
            "scales": rounded.scales_OG.T.half().contiguous(),
        }

    def scaled(
        self, tensors: Mapping[str, Tensor], seen: Mapping[str, Seen]
    ) -> Mapping[str, Tensor]:
        held = dict(tensors)
        changed: dict[str, Tensor] = {}
        for before, after in PAIRS:
            names = [f"{path}.weight" for path in after]
            first = f"{before}.weight"
            if first not in held or any(n not in held or p not in seen for n, p in _both(after)):
                continue
            scale_I = self._scale([held[name] for name in names], seen[after[0]])
            scales = dict.fromkeys((first, f"{before}.bias") if first in held else ())
            for name in scales:
                if name in held:
                    shape = (-1, *[1] * (held[name].ndim - 1))
                    changed[name] = held[name] = held[name] / scale_I.view(shape)
            for name in names:
                changed[name] = held[name] = held[name] * scale_I
        return changed

    def _scale(self, weights: Sequence[Tensor], seen: Seen) -> Tensor:
        """Return the factor of each column with which the products change least."""
        best_I, least = seen.mean_I.new_ones(len(seen.mean_I)), math.inf
        for ratio in RATIOS:
            scale_I = seen.mean_I.pow(ratio).clamp(min=1e-4)
            scale_I = scale_I / (scale_I.max() * scale_I.min()).sqrt()
            loss = sum(self._loss(weight_OI, scale_I, seen) for weight_OI in weights)
            if math.isfinite(loss) and loss < least:
                best_I, least = scale_I, loss
        return best_I

    def _loss(self, weight_OI: Tensor, scale_I: Tensor, seen: Seen) -> float:
        """Return the squared error of the products, summed over all inputs."""
        from inferno.nn import nearest

        scaled_OI = weight_OI.float() * scale_I
        off_OI = nearest(scaled_OI, self._grid(weight_OI)).values() / scale_I - weight_OI.float()
        return float(((off_OI @ seen.gram_II) * off_OI).sum())

    def _group(self, columns: int) -> int:
        return columns if self.group == -1 else self.group

    def _grid(self, weight_OI: Tensor) -> Any:
        from inferno.nn import Grid

        return Grid(4, self._group(weight_OI.shape[1]), symmetric=False)


def _both(paths: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"{path}.weight", path) for path in paths]


def _words(codes_RO: Tensor) -> Tensor:
    """Return the words of `gemm`: (R, O / 8)."""
    import torch

    from inferno.nn import packed_words
    from inferno_awq.weight import PLACES

    codes_RW8 = codes_RO.unflatten(1, (-1, 8))
    stored_RW8 = torch.empty_like(codes_RW8, memory_format=torch.contiguous_format)
    stored_RW8[..., list(PLACES)] = codes_RW8
    return packed_words(stored_RW8.flatten(1), 4)
