"""Kimi delta attention (arXiv:2510.26692): a gated delta rule whose decays differ by channel.

Suffixes: T packed tokens, S sequences, D hidden, X heads x head dim, H heads, C head dim, N
channels of the convolutions, L inputs that they look back at.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Shard
from inferno.nn import (
    CausalConv,
    Cut,
    Finalize,
    Layer,
    Linear,
    MergedLinear,
    RMSNorm,
    State,
    channel_gated_delta,
)
from inferno.nn.batch import Batch
from inferno_kimi_linear.config import KimiLinearConfig


class ExactNorm(RMSNorm):
    """A norm whose weight stays float32, as what it normalizes is."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        self.keep_fp32 = ("weight",)


class DeltaAttention(Layer):
    """Projections, short convolutions, the rule, a norm times a gate, a projection."""

    keep_fp32 = ("dt_bias", "A_log")

    def __init__(self, config: KimiLinearConfig, layer_id: int) -> None:
        super().__init__()
        spec, hidden = config.state_spec, config.hidden_size
        heads, self.width = config.linear_num_heads, config.linear_head_dim
        inner, taps = heads * self.width, config.linear_conv_kernel_dim
        self.inputs = MergedLinear(
            hidden,
            q_proj=inner,
            k_proj=inner,
            v_proj=inner,
            f_a_proj=self.width,
            g_a_proj=self.width,
            b_proj=heads,
        )
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (CausalConv(inner, taps) for _ in range(3))
        self.f_b_proj, self.g_b_proj = (Linear(self.width, inner) for _ in range(2))
        self.dt_bias = nn.Parameter(torch.empty(inner))
        self.A_log = nn.Parameter(torch.empty(1, 1, heads, 1))
        self.o_norm = ExactNorm(self.width, config.rms_norm_eps)
        self.o_proj = Linear(inner, hidden)
        self.state = State(layer_id, spec)
        self.cuts: Mapping[str, Cut] = {}

    def divide(self, shard: Shard) -> None:
        """Keep some of the heads."""
        if not shard.states:
            return
        heads, _ = shard.heads(self.state.spec)
        span = heads[0] * self.width, heads[1] * self.width
        self.inputs.keep_rows(q_proj=[span], k_proj=[span], v_proj=[span], b_proj=[heads])
        for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d):
            conv.keep(span)
        for linear in (self.f_b_proj, self.g_b_proj):
            linear.keep_rows(span)
        self.cuts = {"dt_bias": Cut.rows(span), "A_log": Cut(2, (heads,))}
        self.o_proj.keep_columns(span, shard)
        self.state.spec = shard.local(self.state.spec)

    def finalize(self, to: Finalize) -> None:
        """Make the convolutions of queries, keys and values one."""
        weights: list[Tensor] = [
            conv.weight for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        ]
        with torch.device("meta"):
            self.conv1d = CausalConv(0, weights[0].shape[-1])
        self.conv1d.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
        del self.q_conv1d, self.k_conv1d, self.v_conv1d

    def forward(self, x_TD: Tensor, rotation: object, batch: Batch) -> Tensor:
        states = self.state.load(batch)
        *qkv, f_TC, g_TC, b_TH = self.inputs(x_TD)
        qkv_TN, conv_SLN = self.conv1d(torch.cat(qkv, -1), states["conv"], batch)
        q_THC, k_THC, v_THC = (
            part.unflatten(-1, (-1, self.width)) for part in F.silu(qkv_TN).chunk(3, -1)
        )
        steps_THC = F.softplus(self.f_b_proj(f_TC).float() + self.dt_bias).view_as(q_THC)
        decays_THC = -self.A_log[0].exp() * steps_THC
        y_THC, state_SHCC = channel_gated_delta(
            q_THC, k_THC, v_THC, decays_THC, b_TH.float().sigmoid(), states["state"], batch
        )
        self.state.store(batch, conv=conv_SLN, state=state_SHCC)
        gate_THC = self.g_b_proj(g_TC).view_as(q_THC).float().sigmoid()
        gated_THC = self.o_norm(y_THC) * gate_THC
        y_TD: Tensor = self.o_proj(gated_THC.to(x_TD.dtype).flatten(1))
        return y_TD
