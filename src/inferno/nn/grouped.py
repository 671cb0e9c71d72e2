"""Linear layers of a mixture's experts, as one weight or several.

Suffixes: E experts, N rows sorted by expert, I inputs, O outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from inferno.nn.layer import Stack
from inferno.nn.linear import Linear
from inferno.nn.lora import Pairs
from inferno.nn.weight import Weight, with_biases


class GroupedLinear(nn.Module):
    """One linear layer per expert, each made of the same number of `linears`, in the experts'
    order."""

    bias_O: Tensor | None

    def __init__(self, linears: Sequence[Linear], weight: Weight, names: Sequence[str]) -> None:
        """`names` are those of an expert's linears in it."""
        super().__init__()
        biases = [linear.bias for linear in linears if linear.bias is not None and len(linear.bias)]
        self.register_buffer(
            "bias_O", torch.cat(list(biases)) if biases else None, persistent=False
        )
        self.weight, self.names = weight, tuple(names)
        self.shares = [linear.share for linear in linears[: len(names)]]
        """Those of one expert's linears: all experts are divided alike."""
        self.pairs: Pairs | None = None
        """The adapters of all experts, if there is room for them."""

    @classmethod
    def of(cls, linears: Sequence[Linear], name: str, stack: Stack) -> GroupedLinear:
        """Build it with one weight if they stack, else with separate ones."""
        weights = [linear.weight for linear in linears]
        whole = stack(weights, grouped=True)
        separate = whole or Separate([stack([weight]) or weight for weight in weights])
        return cls(linears, separate, [name])

    def forward(self, x_NI: Tensor, starts_E1: Tensor, slots_N: Tensor | None = None) -> Tensor:
        """Map rows sorted by expert, (N, I), to (N, O). `starts_E1` has the first row of each
        expert, then their end. `slots_N` are those of `StepSlots.of_experts`."""
        y_NO = self.weight.grouped(x_NI, starts_E1, self.bias_O)
        if slots_N is None or self.pairs is None:
            return y_NO
        return self.pairs.add(y_NO, x_NI, slots_N)


class SideBySide(nn.Module):
    """Concatenates the results of several layers along each row."""

    def __init__(self, *layers: GroupedLinear) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x_NI: Tensor, starts_E1: Tensor, slots_N: Tensor | None = None) -> Tensor:
        return torch.cat([layer(x_NI, starts_E1, slots_N) for layer in self.layers], -1)


class Separate(Weight):
    """Matrices that do not stack: they are multiplied one after the other."""

    def __init__(self, weights: Sequence[Weight]) -> None:
        super().__init__()
        self.weights = nn.ModuleList(weights)
        self.shape = (sum(w.shape[0] for w in weights), weights[0].shape[1])

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        num_experts = len(starts_E1) - 1
        each = len(self.weights) // num_experts
        y_NO = x_NI.new_empty(len(x_NI), self.shape[0] // num_experts)
        for expert, (start, stop) in enumerate(itertools.pairwise(starts_E1.tolist())):
            if stop > start:
                matrices = self.weights[expert * each : (expert + 1) * each]
                parts = [weight.matmul(x_NI[start:stop]) for weight in matrices]  # type: ignore[operator]
                y_NO[start:stop] = torch.cat(parts, -1)
        return with_biases(y_NO, starts_E1, bias_O)
