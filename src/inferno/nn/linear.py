"""Linear layers. They hold a Weight, and need not know whether it is dense or packed.

Suffixes: T tokens, I input features, O output features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from inferno.contracts import Range, Shard
from inferno.nn.cut import Cut, Share
from inferno.nn.layer import Finalize, Layer
from inferno.nn.weight import Unloaded, Weight
from inferno.ops import reference as ops


class Linear(Layer):
    """y_TO = x_TI @ weight_OI.T + bias_O"""

    quantizable: ClassVar[bool] = True
    """Whether it belongs to what is usually quantized: output heads do not."""
    weight: Weight

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = Unloaded(out_features, in_features)
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.sampled = False
        """Whether it is a part of the head: it gets the rows whose logits are computed, not all
        tokens of a step."""
        self.cuts: Mapping[str, Cut] = {}
        """What the loader keeps of its parts, if several ranks share them."""
        self.share: Share | None = None
        """And what that is of the matrix."""
        self.summed, self.ops = False, ops.TORCH
        """Whether each rank's result is a part of the sum over the ranks."""
        self.widths: tuple[int, ...] = ()
        """How many outputs each rank computes, if every rank gathers them all."""
        self.gathered: tuple[int, ...] = ()
        """How many inputs each rank has, if every rank gathers them all."""

    def keep_rows(self, *ranges: Range) -> None:
        """Compute only these outputs."""
        self.cuts = dict.fromkeys(("weight", "bias"), Cut.rows(*ranges))
        self.share = Share(self.cuts["weight"], self.weight.shape)

    def keep_outputs(self, shard: Shard, unit: int | None = None) -> None:
        """Compute some outputs, and take the others from the other ranks: for a module that does
        not know of ranks."""
        size = self.weight.shape[0]
        if shard.divides(size, unit):
            self.widths = tuple(stop - start for start, stop in shard.shares(size, unit))
            self.keep_rows(shard.share(size, unit))

    def keep_columns(self, columns: Range, shard: Shard, *, summed: bool = True) -> None:
        """Take only these inputs, and sum the results of all ranks, unless the caller does that.
        One of them adds the bias. If the matrix is not cut by columns, each rank takes the inputs
        of all, and computes some outputs."""
        if not shard.columns:
            assert summed, "the plan refuses experts that are not cut by columns"
            shares, size = shard.shares(self.weight.shape[1]), columns[1] - columns[0]
            uneven = tuple(stop - start for start, stop in shares)
            self.gathered = uneven if shares[shard.rank] == columns else (size,) * shard.ranks
            self.keep_outputs(shard)
            return
        self.cuts = {"weight": Cut(1, (columns,))}
        self.share = Share(self.cuts["weight"], self.weight.shape)
        if shard.rank > 0:
            self.cuts = {**self.cuts, "bias": Cut(0, ((0, 0),))}
        self.summed = summed

    def finalize(self, to: Finalize) -> None:
        self.weight, self.ops = to.stack([self.weight]) or self.weight, to.ops
        if self.bias is not None and not len(self.bias):
            self.bias = None

    def forward(self, x_TI: Tensor) -> Tensor:
        if self.gathered:
            x_TI = self.ops.all_gather(x_TI, self.gathered)
        y_TO = self.weight.matmul(x_TI, self.bias)
        if self.widths:
            return self.ops.all_gather(y_TO, self.widths)
        return self.ops.all_reduce(y_TO) if self.summed else y_TO


class MergedLinear(Layer):
    """Linear layers that share their input, each under its own checkpoint name.

    `qkv = MergedLinear(d, q_proj=a, k_proj=b, v_proj=c)` returns (q, k, v); at `self_attn.qkv` it
    loads `self_attn.q_proj`, `self_attn.k_proj`, `self_attn.v_proj`. If their layouts allow it,
    they become one matrix at load.
    """

    merged: Weight | None
    """All parts, stacked; None: each part is multiplied separately."""
    bias: Tensor | None

    def __init__(self, in_features: int, *, bias: bool = False, **out_features: int) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {name: Linear(in_features, size, bias=bias) for name, size in out_features.items()}
        )
        self.names, self.sizes = list(out_features), list(out_features.values())
        self.merged = None
        self.shares: list[Share | None] = [None] * len(self.names)
        """Those of the parts."""
        self.register_buffer("bias", None, persistent=False)

    @property
    def linears(self) -> Mapping[str, Linear]:
        return {name: part for name, part in self.parts.items() if isinstance(part, Linear)}

    def keep_rows(self, **ranges: Sequence[Range]) -> None:
        """Compute only these outputs of the parts that are named."""
        for name, rows in ranges.items():
            self.linears[name].keep_rows(*rows)
            self.sizes[self.names.index(name)] = sum(stop - start for start, stop in rows)

    def finalize(self, to: Finalize) -> None:
        parts = list(self.linears.values())
        self.shares = [part.share for part in parts]
        weight = to.stack([part.weight for part in parts])
        if weight is None:
            return
        biases = [part.bias for part in parts if part.bias is not None]
        self.merged, self.bias = weight, torch.cat(list(biases)) if biases else None
        self.parts = nn.ModuleDict()  # frees their memory

    def forward(self, x_TI: Tensor) -> tuple[Tensor, ...]:
        if self.merged is not None:
            return torch.split(self.merged.matmul(x_TI, self.bias), self.sizes, dim=-1)
        return tuple(part(x_TI) for part in self.parts.values())
