"""Some of a mixture's experts, and a step's pairs of a token and one of them.

Suffixes: T tokens, D hidden, E experts, K experts of a token, N pairs of a token and one of its
experts (T·K), I inner width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.nn.grouped import GroupedLinear, SideBySide
from inferno.nn.layer import Stack
from inferno.nn.linear import Linear
from inferno.nn.lora import StepSlots
from inferno.nn.mlp import Names
from inferno.ops.reference import Ops

Sorted = tuple[Tensor, Tensor, Tensor]
"""The token of each row, the first row of each expert and then their end, the row of each pair."""


def places(num_experts: int, own: range) -> Tensor | None:
    """Return where each expert is among `own`, int64, (E,): others are after the last. None: these
    are all."""
    if len(own) == num_experts:
        return None
    numbers_E = torch.arange(num_experts) - own.start
    return numbers_E.masked_fill_((numbers_E < 0) | (numbers_E >= len(own)), len(own))


class Mixture(Protocol):
    """Where experts come from: `Experts`."""

    names: Names
    gated: Callable[..., Tensor] | None
    weighs_inputs: bool

    def linear(self, number: int, name: str) -> Linear:
        """Return a matrix of an expert that is not finalized yet."""
        ...


class PartOfExperts(nn.Module):
    """Some experts. A step sorts its pairs by expert, and multiplies a group of rows per expert."""

    def __init__(self, experts: Mixture, own: range, ops: Ops, local_E: Tensor | None) -> None:
        """`own` are these experts, `local_E` their `places`."""
        super().__init__()
        self.own, self.ops, self.names = own, ops, experts.names
        self.gated, self.weighs_inputs = experts.gated, experts.weighs_inputs
        self.local_E: Tensor | None
        self.register_buffer("local_E", local_E, persistent=False)

    def combined(
        self,
        x_TD: Tensor,
        weights_TK: Tensor,
        rows: Sorted,
        product: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return each token's weighted sum over those of its experts that are in the group, (T, D).
        `product(x_ND, starts_E1)` returns what they make of these rows."""
        tokens_N, starts_E1, places_TK = rows
        x_ND = self.ops.gather(x_TD, tokens_N)
        if self.weighs_inputs:
            # Rows of no pair, and that of pairs of other experts, are read by nothing.
            weights_N = weights_TK.new_zeros(len(tokens_N))
            weights_N.scatter_(0, places_TK.flatten(), weights_TK.flatten())
            x_ND, weights_TK = x_ND * weights_N[:, None].to(x_ND.dtype), torch.ones_like(weights_TK)
        y_ND = product(x_ND, starts_E1)
        if self.local_E is not None:  # not weights of 0: what is there may not be finite
            y_ND.index_fill_(0, starts_E1[-1:].long(), 0)
        return self.ops.combine(y_ND, places_TK, weights_TK)

    def activated(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Return the input of the last matrix, (N, I), from the results of the others."""
        return self.ops.silu_mul(*parts) if self.gated is None else self.gated(*parts)

    def dispatched(self, experts_TK: Tensor) -> Sorted:
        """Sort pairs by expert. Rows at the end are those of pairs that others compute, and one
        more: there are as many whatever the values are, so that a step can be captured. All of
        these pairs are at the first of them."""
        count = len(self.own)
        if self.local_E is None:
            return self.ops.dispatch(experts_TK, count)
        tokens_N, starts_E1, places_TK = self.ops.dispatch(self.local_E[experts_TK], count + 1)
        starts_E1 = starts_E1[:-1]
        return F.pad(tokens_N, (0, 1)), starts_E1, torch.minimum(places_TK, starts_E1[-1])

    def fitted(self, rows: Sorted, count: int) -> Sorted:
        """Leave out the rows of pairs that others compute; `count` are of these experts."""
        return rows if self.local_E is None else (rows[0][: count + 1], *rows[1:])


class ExpertGroup(PartOfExperts):
    """Experts whose matrices are one weight."""

    def __init__(
        self, experts: Mixture, own: range, stack: Stack, ops: Ops, local_E: Tensor | None
    ) -> None:
        """Take the matrices of these experts, whose `places` are `local_E`."""
        super().__init__(experts, own, ops, local_E)
        self.slots: StepSlots | None = None
        """Where the experts' matrices have adapters."""
        *ups, downs = ([experts.linear(n, name) for n in own] for name in self.names)
        each = [linear for of_one in zip(*ups, strict=True) for linear in of_one]
        self.gate_up: nn.Module
        names = self.names[:-1]
        if (weight := stack([linear.weight for linear in each], grouped=True)) is not None:
            self.gate_up = GroupedLinear(each, weight, names)
        else:  # their layouts differ
            parts = zip(ups, names, strict=True)
            self.gate_up = SideBySide(*(GroupedLinear.of(*part, stack) for part in parts))
        self.down = GroupedLinear.of(downs, self.names[-1], stack)

    def forward(
        self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor, fitted: bool = False
    ) -> Tensor | None:
        """Return each token's weighted sum over those of its experts that are in the group, (T, D).
        If `fitted`, the number of rows follows from the values, which must then be on the host;
        None: no token has any of these experts."""
        rows = self.dispatched(experts_TK)
        if fitted and self.local_E is not None:
            if (count := int(rows[1][-1])) == 0:
                return None
            rows = self.fitted(rows, count)
        slots_N = None if self.slots is None else self.slots.of_experts(rows[0], rows[1])
        return self.combined(x_TD, weights_TK, rows, partial(self.product, slots_N=slots_N))

    def product(self, x_ND: Tensor, starts_E1: Tensor, slots_N: Tensor | None = None) -> Tensor:
        """Return what each expert makes of its rows, (N, D). `slots_N` as for `GroupedLinear`."""
        parts = self.gate_up(x_ND, starts_E1, slots_N).chunk(len(self.names) - 1, dim=-1)
        y_ND: Tensor = self.down(self.activated(parts), starts_E1, slots_N)
        return y_ND
