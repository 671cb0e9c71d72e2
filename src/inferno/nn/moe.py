"""Mixtures of experts: a router picks a few gated MLPs for each token (arXiv:1701.06538, arXiv:2401.06066).

Suffixes: T tokens, D hidden, E experts, G groups of experts, K experts of a token, N pairs of a token and one of its
experts (T·K), I inner width of an expert.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn

from inferno.nn import ops
from inferno.nn.linear import Linear, Stack
from inferno.nn.mlp import GatedMLP
from inferno.nn.weight import Weight


@frozen(kw_only=True)
class Routing:
    """How a token's experts are picked and weighed."""

    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """From logits to scores: over all experts, or each by itself."""
    normalize: bool = False
    """Whether the weights of the picked are made to sum to 1."""
    scale: float = 1.0
    """Factor on the weights, at the end."""
    num_groups: int = 1
    """Groups of equally many neighbouring experts. A token's come from its `top_groups` best."""
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    """What a group is worth: its best expert's score, or its two best's together."""


def route(logits_TE: Tensor, routing: Routing, correction_E: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each token's experts and their weights, (T, K) int64 and float32. `correction_E` is added to the scores while experts are
    picked, and not to their weights (arXiv:2408.15664)."""
    logits_TE = logits_TE.float()
    scores_TE = logits_TE.softmax(-1) if routing.scoring == "softmax" else logits_TE.sigmoid()
    choice_TE = scores_TE if correction_E is None else scores_TE + correction_E
    if routing.top_groups < routing.num_groups:
        choice_TGX = choice_TE.view(len(choice_TE), routing.num_groups, -1)
        best = 2 if routing.group_score == "top2" else 1
        groups_TG = choice_TGX.topk(best, dim=-1).values.sum(-1).topk(routing.top_groups, dim=-1).indices
        kept_TG = torch.zeros_like(choice_TGX[..., 0], dtype=torch.bool).scatter_(1, groups_TG, True)
        choice_TE = choice_TGX.masked_fill(~kept_TG[..., None], float("-inf")).flatten(1)
    experts_TK = choice_TE.topk(routing.top_k, dim=-1).indices
    weights_TK = scores_TE.gather(1, experts_TK)
    if routing.normalize:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return experts_TK, weights_TK * routing.scale


class Router(nn.Module):
    """Logits of the experts, in float32, and `route`."""

    def __init__(
        self, hidden_size: int, num_experts: int, routing: Routing, *, bias: bool = False, correction: bool = False
    ) -> None:
        """With a `correction`, checkpoints store an `e_score_correction_bias`."""
        super().__init__()
        self.routing = routing
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(num_experts)) if bias else None
        self.e_score_correction_bias = nn.Parameter(torch.empty(num_experts)) if correction else None
        self.exact = ("weight", "bias", "e_score_correction_bias")

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights, (T, K)."""
        logits_TE = F.linear(x_TD.float(), self.weight, self.bias)
        return route(logits_TE, self.routing, self.e_score_correction_bias)


class Expert(nn.Module):
    """One expert's matrices, under the names that most checkpoints have."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)


class Experts(nn.Module):
    """Gated MLPs, of which each token uses a few. Expert e is stored under its number: `experts.3.gate_proj`.

    Once loaded, the matrices of all experts are one weight: a step sorts its pairs by expert and multiplies group by group.
    """

    def __init__(
        self, num_experts: int, hidden_size: int, intermediate_size: int, *, bias: bool = False,
        gated: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        """`gated(gate_NI, up_NI)` is what `down_proj` multiplies; None: silu(gate) · up."""
        super().__init__()
        self.num_experts = num_experts
        self.gated = gated
        self.ops = ops.TORCH
        for number in range(num_experts):
            self.add_module(str(number), Expert(hidden_size, intermediate_size, bias=bias))

    def fuse(self, stack: Stack) -> None:
        """Make one weight of all gates and ups, and one of all downs. The experts' own memory is given back."""
        experts = [self.get_submodule(str(number)) for number in range(self.num_experts)]
        for number in range(self.num_experts):
            delattr(self, str(number))
        gate_up = [linear for e in experts for linear in (e.gate_proj, e.up_proj)]
        self.gate_up = GroupedLinear(gate_up, self.num_experts, stack)  # type: ignore[arg-type]  # nn.Module's attributes
        self.down = GroupedLinear([e.down_proj for e in experts], self.num_experts, stack)  # type: ignore[misc]

    def forward(self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Each token's weighted sum over its experts, (T, D)."""
        top_k = experts_TK.shape[1]
        expert_N, order_N = experts_TK.flatten().sort(stable=True)
        starts_E1 = torch.searchsorted(expert_N, torch.arange(self.num_experts + 1, device=x_TD.device), out_int32=True)
        x_ND = x_TD[order_N // top_k]
        gate_NI, up_NI = self.gate_up(x_ND, expert_N, starts_E1).chunk(2, dim=-1)
        h_NI = self.ops.silu_mul(gate_NI, up_NI) if self.gated is None else self.gated(gate_NI, up_NI)
        y_ND = torch.empty_like(x_ND)
        y_ND[order_N] = self.down(h_NI, expert_N, starts_E1)
        y_T1D = torch.bmm(weights_TK[:, None], y_ND.view(-1, top_k, x_TD.shape[1]).float())
        return y_T1D[:, 0].to(x_TD.dtype)


class MixtureOfExperts(nn.Module):
    """In the place of a decoder layer's MLP: `gate` picks from `experts`; every token passes `shared_experts` besides, where
    there are any. The names are those that most checkpoints have."""

    def __init__(
        self, num_experts: int, hidden_size: int, intermediate_size: int, routing: Routing, *, correction: bool = False,
        shared_size: int = 0,
    ) -> None:  # fmt: skip
        """`shared_size` is the inner width of all shared experts together; 0: none."""
        super().__init__()
        self.gate = Router(hidden_size, num_experts, routing, correction=correction)
        self.experts = Experts(num_experts, hidden_size, intermediate_size)
        self.shared_experts = GatedMLP(hidden_size, shared_size) if shared_size else None

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.experts(x_TD, *self.gate(x_TD))
        return y_TD if self.shared_experts is None else y_TD + self.shared_experts(x_TD)


class GroupedLinear(nn.Module):
    """A linear layer of each expert, each made of equally many `linears`, which lie in the experts' order."""

    def __init__(self, linears: Sequence[Linear], num_experts: int, stack: Stack) -> None:
        super().__init__()
        biases = [linear.bias for linear in linears if linear.bias is not None]
        self.bias_EO = torch.cat(list(biases)).view(num_experts, -1) if biases else None
        weights = [linear.weight for linear in linears]
        self.weight = stack(weights, grouped=True) or Separate(weights)

    def forward(self, x_NI: Tensor, expert_N: Tensor, starts_E1: Tensor) -> Tensor:
        """Rows sorted by expert, (N, I) to (N, O). `starts_E1` are the first rows of each expert, and N."""
        y_NO = self.weight.grouped(x_NI, starts_E1)
        return y_NO if self.bias_EO is None else y_NO + self.bias_EO[expert_N]


class Separate(Weight):
    """Matrices whose layouts do not stack, multiplied one after the other."""

    def __init__(self, weights: Sequence[Weight]) -> None:
        super().__init__()
        self.weights = nn.ModuleList(weights)
        self.shape = (sum(w.shape[0] for w in weights), weights[0].shape[1])

    def grouped(self, x_NI: Tensor, starts_E1: Tensor) -> Tensor:
        num_experts = len(starts_E1) - 1
        each = len(self.weights) // num_experts
        y_NO = x_NI.new_empty(len(x_NI), self.shape[0] // num_experts)
        for expert, (start, stop) in enumerate(itertools.pairwise(starts_E1.tolist())):
            if stop > start:
                own = self.weights[expert * each : (expert + 1) * each]
                y_NO[start:stop] = torch.cat([weight.matmul(x_NI[start:stop]) for weight in own], -1)  # type: ignore[operator]
        return y_NO
