"""Mixtures of experts: a router picks a few gated MLPs for each token (arXiv:1701.06538,
arXiv:2401.06066).

Suffixes: T tokens, D hidden, E experts, G groups of experts, K experts of a token, N pairs of a
token and one of its experts (T·K), I inner width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn

from inferno.contracts import Shard
from inferno.nn.expert_group import ExpertGroup, places
from inferno.nn.host_experts import HostExperts
from inferno.nn.layer import Finalize, Layer
from inferno.nn.linear import Linear
from inferno.nn.mlp import NAMES, FusedGatedMLP, GatedMLP, Names
from inferno.ops import reference as ops
from inferno.ops.rows import linear_by_rows


@frozen(kw_only=True)
class Routing:
    """How a token's experts are selected and weighted."""

    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """Maps logits to scores: over all experts, or for each separately."""
    normalize: bool = False
    """Whether the weights of the selected experts are normalized to sum to 1."""
    scale: float = 1.0
    """Factor on the final weights."""
    num_groups: int = 1
    """Number of equal groups of consecutive experts. A token's experts come from its `top_groups`
    best groups."""
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    """A group's score: that of its best expert, or the sum of its two best."""


def in_groups(choice_TE: Tensor, routing: Routing) -> Tensor:
    """Return the selection scores, with -inf for experts outside of a token's best groups."""
    choice_TGX = choice_TE.view(len(choice_TE), routing.num_groups, -1)
    best = min(2 if routing.group_score == "top2" else 1, choice_TGX.shape[-1])
    groups_TG = (
        choice_TGX.topk(best, dim=-1).values.sum(-1).topk(routing.top_groups, dim=-1).indices
    )
    kept_TG = torch.zeros_like(choice_TGX[..., 0], dtype=torch.bool).scatter_(1, groups_TG, True)
    return choice_TGX.masked_fill(~kept_TG[..., None], float("-inf")).flatten(1)


class Router(Layer):
    """Selects each token's experts, by logits in float32."""

    keep_fp32 = ("weight", "bias", "e_score_correction_bias")

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        routing: Routing,
        *,
        bias: bool = False,
        correction: bool = False,
    ) -> None:
        """With `correction`, checkpoints store an `e_score_correction_bias`."""
        super().__init__()
        self.routing = routing
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(num_experts)) if bias else None
        self.e_score_correction_bias = (
            nn.Parameter(torch.empty(num_experts)) if correction else None
        )
        self.ops = ops.TORCH
        self.linear: Callable[..., Tensor] = F.linear

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops
        if to.batch_invariant:
            self.linear = linear_by_rows

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of each token and their weights, (T, K) int64 and float32. The
        correction bias affects which experts are selected, not their weights (arXiv:2408.15664)."""
        r, correction_E = self.routing, self.e_score_correction_bias
        sigmoid = r.scoring == "sigmoid"
        if r.top_groups == r.num_groups:
            return self.ops.route(
                x_TD, self.weight, self.bias, correction_E, r.top_k, sigmoid, r.normalize, r.scale
            )
        scores_TE = ops.scores(x_TD, self.weight, self.bias, sigmoid, self.linear)
        choice_TE = in_groups(scores_TE if correction_E is None else scores_TE + correction_E, r)
        experts_TK = choice_TE.topk(r.top_k, dim=-1).indices
        return experts_TK, ops.weights(scores_TE, experts_TK, r.normalize, r.scale)


class Expert(nn.Module):
    """One expert's matrices, under their names."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, names: Names, *, bias: bool
    ) -> None:
        super().__init__()
        for name in names[:-1]:
            self.add_module(name, Linear(hidden_size, intermediate_size, bias=bias))
        self.add_module(names[-1], Linear(intermediate_size, hidden_size, bias=bias))


Exchange = Callable[[Tensor, Tensor, Tensor], Tensor]
"""exchange(x_TD, experts_TK, weights_TK) -> each token's weighted sum over its experts, (T, D)."""


class Experts(Layer):
    """Gated MLPs, or plain ones, of which each token uses a few. An expert is stored under its
    index: `experts.3.gate_proj`.

    Once loaded, the matrices of all experts are one `ExpertGroup`, or two: of those in the device's
    memory and of those in the host's.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        gated: Callable[..., Tensor] | None = None,
        names: Names = NAMES,
        weighs_inputs: bool = False,
    ) -> None:
        """`gated(gate_NI, up_NI)` returns the input of `down_proj`; None: silu(gate) · up. With two
        names there is no gate, and `gated` is given up_NI only. With `weighs_inputs`, an expert is
        given a token times its weight, and the results are added up."""
        super().__init__()
        self.num_experts = num_experts
        self.gated, self.weighs_inputs = gated, weighs_inputs
        self.ops = ops.TORCH
        self.names = names
        for number in range(num_experts):
            self.add_module(str(number), Expert(hidden_size, intermediate_size, names, bias=bias))
        self.hidden_size = hidden_size
        self.size, self.summed = intermediate_size, False
        """The inner width of an expert; and as `Linear.summed`."""
        self.exchange: Exchange | None = None
        """What computes this process's tokens together with the other engines that share the
        experts; None: no other engine has some of them."""
        self.own, self.hosted = range(num_experts), range(0)
        """The experts that this rank has, and those of them that the host's memory holds."""
        self.local_E: Tensor | None
        """`places` among those in the device's memory."""
        self.register_buffer("local_E", None, persistent=False)

    def divide(self, shard: Shard) -> None:
        """Keep some experts, or a part of the inner width of each. Only the sum over a token's
        experts is summed over the ranks."""
        if shard.experts:
            self.summed, self.own = not shard.own_tokens, range(*shard.share(self.num_experts, 1))
            self.local_E = places(self.num_experts, self.own)
            return
        if not shard.divides(self.size):
            return
        self.summed, inner = True, shard.share(self.size)
        for number in range(self.num_experts):
            *ups, down = (self.linear(number, name) for name in self.names)
            for up in ups:
                up.keep_rows(inner)
            down.keep_columns(inner, shard, summed=False)

    def drop_others(self) -> None:
        """Drop the experts of other ranks, once the checkpoint is paired with all of them."""
        for number in range(self.num_experts):
            if number not in self.own:
                delattr(self, str(number))

    def keep_on_host(self, count: int) -> set[nn.Module]:
        """Keep the first `count` of this rank's experts in the host's memory, or all if it has
        fewer. Call it before they are loaded. Returns the modules whose tensors belong there."""
        self.hosted = self.own[:count]
        self.local_E = places(self.num_experts, self.own[len(self.hosted) :])
        each = (self.get_submodule(str(number)) for number in self.hosted)
        return {module for expert in each for module in expert.modules()}

    def linear(self, number: int, name: str) -> Linear:
        """Return a matrix of an expert that is not finalized yet."""
        linear = self.get_submodule(f"{number}.{name}")
        assert isinstance(linear, Linear), "an expert has made it"
        return linear

    def finalize(self, to: Finalize) -> None:
        """Stack all gates and ups into one weight, and all downs into another. Frees the experts'
        original memory."""
        self.ops, near = to.ops, self.own[len(self.hosted) :]
        self.near = ExpertGroup(self, near, to.stack, to.ops, self.local_E) if near else None
        self.host: HostExperts | None = None
        if self.hosted:
            local_E = places(self.num_experts, self.hosted)
            self.host = HostExperts.of(self, self.hosted, local_E, to)
        for number in self.own:
            delattr(self, str(number))

    @property
    def groups(self) -> Sequence[ExpertGroup]:
        """Those that `finalize` has made."""
        return [each for each in self.modules() if isinstance(each, ExpertGroup)]

    def forward(self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return each token's weighted sum over its experts, (T, D)."""
        if not len(x_TD):
            return x_TD
        if self.exchange is not None:
            return self.exchange(x_TD, experts_TK, weights_TK)
        fitted = x_TD.device.type == "cpu" and len(x_TD) > MOST_CAPTURED
        y_TD = self.mixed(x_TD, experts_TK, weights_TK, fitted=fitted)
        return self.ops.all_reduce(y_TD) if self.summed else y_TD

    def mixed(
        self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor, *, fitted: bool
    ) -> Tensor:
        """Return each token's weighted sum over those of its experts that are here, (T, D). If
        `fitted`, shapes may depend on values, which must then be on the host."""
        given = x_TD, experts_TK, weights_TK, fitted
        host = None if self.host is None else self.host.start(*given)
        y_TD = None if self.near is None else self.near(*given)
        if host is not None and (host_TD := host()) is not None:
            y_TD = host_TD if y_TD is None else y_TD + host_TD
        return torch.zeros_like(x_TD) if y_TD is None else y_TD


MOST_CAPTURED = 64
"""The most tokens of a step that is captured on a CPU: of more, rows may follow from values."""


class MixtureOfExperts(nn.Module):
    """Replaces a decoder layer's MLP: `gate` selects from `experts`; every token also passes
    through `shared_experts`, if there are any. The names are most checkpoints'."""

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        routing: Routing,
        *,
        correction: bool = False,
        shared_size: int = 0,
        names: Names = NAMES,
    ) -> None:
        """`shared_size` is the total inner width of the shared experts; 0: none. `names` are those
        of an expert's matrices."""
        super().__init__()
        self.gate = Router(hidden_size, num_experts, routing, correction=correction)
        self.experts = Experts(num_experts, hidden_size, intermediate_size, names=names)
        self.shared_experts = GatedMLP(hidden_size, shared_size) if shared_size else None
        self.summed = False
        """Whether both are summed over the ranks at once."""

    def divide(self, shard: Shard) -> None:
        """Sum once over the ranks, after the experts are."""
        self.summed = sum_once(self.experts, self.shared_experts)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.experts(x_TD, *self.gate(x_TD))
        if self.shared_experts is None:
            return y_TD
        y_TD = y_TD + self.shared_experts(x_TD)
        return self.experts.ops.all_reduce(y_TD) if self.summed else y_TD


def sum_once(experts: Experts, shared: GatedMLP | FusedGatedMLP | None) -> bool:
    """Leave the sum over the ranks to the caller, who adds routed and shared experts, if both are
    divided. Returns whether they are. To be called by `divide`."""
    if shared is None or not (experts.summed and shared.down.summed):
        return False
    experts.summed = shared.down.summed = False
    return True
