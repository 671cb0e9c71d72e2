"""Writes matrices in FP8 with a scale for each block of 128 x 128 values, as DeepSeek-V3's.

Suffixes: O rows, I columns, P rows of blocks, Q columns of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import Seen, TensorInfo, WriteOptions

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128
MOST = 448.0
"""The largest float8 (e4m3)."""


@frozen
class Fp8Encoding:
    """See `contracts.Encoding`."""

    @classmethod
    def of(cls, options: WriteOptions) -> Fp8Encoding:
        return cls()

    def parts(self, path: str, shape: tuple[int, int]) -> Mapping[str, TensorInfo] | str:
        rows, columns = shape
        blocks = -(-rows // BLOCK), -(-columns // BLOCK)
        return {
            "weight": TensorInfo("float8_e4m3fn", shape, rows * columns),
            "weight_scale_inv": TensorInfo("float32", blocks, 4 * blocks[0] * blocks[1]),
        }

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": list(dense),
        }

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        import torch
        import torch.nn.functional as F

        rows, columns = weight_OI.shape
        padded = F.pad(weight_OI.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
        blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        scales_PQ = (blocks.abs().amax((1, 3)) / MOST).clamp(min=1e-12)
        scaled = (blocks / scales_PQ[:, None, :, None]).flatten(2).flatten(0, 1)
        return {
            "weight": scaled[:rows, :columns].clamp(-MOST, MOST).to(torch.float8_e4m3fn),
            "weight_scale_inv": scales_PQ,
        }
