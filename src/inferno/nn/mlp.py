from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import Shard
from inferno.nn.layer import Finalize, Layer
from inferno.nn.linear import Linear, MergedLinear
from inferno.ops import reference as ops

Activation = Literal["silu", "gelu_tanh"]
Names = tuple[str, ...]
"""Those of gate, up and down in checkpoints; only of up and down, if nothing is gated."""
NAMES: Names = ("gate_proj", "up_proj", "down_proj")


class GatedMLP(Layer):
    """down(act(gate(x)) · up(x)): SwiGLU, or GeGLU (arXiv:2002.05202)."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        down_bias: bool | None = None,
        activation: Activation = "silu",
        names: Names = NAMES,
    ) -> None:
        """`down_bias`: whether the last matrix has a bias; None: as the others."""
        super().__init__()
        down_bias = bias if down_bias is None else down_bias
        self.gate_up = MergedLinear(
            hidden_size, bias=bias, **dict.fromkeys(names[:2], intermediate_size)
        )
        self.down_name = names[2]
        self.add_module(names[2], Linear(intermediate_size, hidden_size, bias=down_bias))
        self.activation = activation
        self.ops = ops.TORCH

    def divide(self, shard: Shard) -> None:
        """Keep a part of the inner width."""
        if shard.divides(size := self.down.weight.shape[1]):
            inner = shard.share(size)
            self.gate_up.keep_rows(**dict.fromkeys(self.gate_up.names, [inner]))
            self.down.keep_columns(inner, shard)

    @property
    def down(self) -> Linear:
        """The matrix that is multiplied last."""
        linear: Linear = getattr(self, self.down_name)
        return linear

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops

    def forward(self, x_TD: Tensor) -> Tensor:
        gate_TI, up_TI = self.gate_up(x_TD)
        y_TD: Tensor = self.down(gated(self.ops, self.activation, gate_TI, up_TI))
        return y_TD


class FusedGatedMLP(Layer):
    """A `GatedMLP` whose checkpoints store gate and up as one matrix, the gate's rows first."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: Activation = "silu",
        names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    ) -> None:
        """`names` are those of both matrices in checkpoints."""
        super().__init__()
        self.names = names
        self.add_module(names[0], Linear(hidden_size, 2 * intermediate_size))
        self.add_module(names[1], Linear(intermediate_size, hidden_size))
        self.activation = activation
        self.ops = ops.TORCH

    def divide(self, shard: Shard) -> None:
        """Keep a part of the inner width."""
        if shard.divides(size := self.down.weight.shape[1]):
            start, stop = shard.share(size)
            self.gate_up.keep_rows((start, stop), (size + start, size + stop))
            self.down.keep_columns((start, stop), shard)

    @property
    def gate_up(self) -> Linear:
        linear: Linear = getattr(self, self.names[0])
        return linear

    @property
    def down(self) -> Linear:
        """The matrix that is multiplied last."""
        linear: Linear = getattr(self, self.names[1])
        return linear

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops

    def forward(self, x_TD: Tensor) -> Tensor:
        gate_TI, up_TI = self.gate_up(x_TD).chunk(2, dim=-1)
        y_TD: Tensor = self.down(gated(self.ops, self.activation, gate_TI, up_TI))
        return y_TD


def gated(ops: ops.Ops, activation: Activation, gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    """act(gate) · up"""
    if activation == "silu":
        return ops.silu_mul(gate_TI, up_TI)
    return F.gelu(gate_TI, approximate="tanh") * up_TI
