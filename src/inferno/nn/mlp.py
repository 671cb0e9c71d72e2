from __future__ import annotations

from torch import Tensor, nn

from inferno.nn import ops
from inferno.nn.linear import Linear, MergedLinear


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)): SwiGLU (arXiv:2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = MergedLinear(hidden_size, bias=bias, gate_proj=intermediate_size, up_proj=intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)
        self.ops = ops.TORCH

    def forward(self, x_TD: Tensor) -> Tensor:
        gate_TI, up_TI = self.gate_up(x_TD)
        y_TD: Tensor = self.down_proj(self.ops.silu_mul(gate_TI, up_TI))
        return y_TD
