from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inferno.testing import QuantSchemeTests


class TestDense(QuantSchemeTests):
    scheme = "dense"
    shapes = ((64, 96), (7, 33))  # 33: no whole 16 bytes, which torch's grouped product wants

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        return {
            "weight": torch.randn(
                rows, columns, generator=torch.Generator().manual_seed(seed)
            ).bfloat16()
        }

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return parts["weight"].float()
