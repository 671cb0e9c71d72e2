"""Linear layers. They hold a Weight; whether it is dense or packed they do not know.

Suffixes: T tokens, I input features, O output features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from inferno.nn.weight import Unloaded, Weight


class Stack(Protocol):
    """What a module's `fuse` is given, once every tensor is in place."""

    def __call__(self, weights: Sequence[Weight], *, grouped: bool = False) -> Weight | None:
        """One weight for these, one below the other, in its final layout; None when they do not go
        together. `grouped` ones are asked for `Weight.grouped`, others for `Weight.matmul`."""
        ...


class Linear(nn.Module):
    """y_TO = x_TI @ weight_OI.T + bias_O"""

    weight: Weight

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = Unloaded(out_features, in_features)
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x_TI: Tensor) -> Tensor:
        return self.weight.matmul(x_TI, self.bias)


class MergedLinear(nn.Module):
    """Linears that share their input, each under its own checkpoint name.

    `qkv = MergedLinear(d, q_proj=a, k_proj=b, v_proj=c)` returns (q, k, v); at `self_attn.qkv` it
    loads `self_attn.q_proj`, `self_attn.k_proj`, `self_attn.v_proj`. `fuse()` makes them one matmul
    when their weights allow it.
    """

    def __init__(self, in_features: int, *, bias: bool = False, **out_features: int) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {name: Linear(in_features, size, bias=bias) for name, size in out_features.items()}
        )
        self.sizes = list(out_features.values())
        self.fused: Linear | None = None

    @property
    def linears(self) -> Mapping[str, Linear]:
        return {name: part for name, part in self.parts.items() if isinstance(part, Linear)}

    def fuse(self, stack: Stack) -> None:
        """One weight instead of several, if `stack` can make one of them. The parts' own memory is
        given back."""
        parts = list(self.linears.values())
        weight = stack([p.weight for p in parts])
        if weight is None:
            return
        fused = Linear(weight.shape[1], weight.shape[0])
        fused.weight = weight
        biases = [p.bias for p in parts if p.bias is not None]
        if biases:
            fused.bias = nn.Parameter(torch.cat(list(biases)), requires_grad=False)
        self.fused, self.parts = fused, nn.ModuleDict()

    def forward(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        if self.fused is not None:
            return torch.split(self.fused(x_TI), self.sizes, dim=-1)
        return tuple(part(x_TI) for part in self.parts.values())
