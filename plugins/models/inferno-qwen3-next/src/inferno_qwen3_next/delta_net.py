"""The layers without attention: gated delta nets, which keep a matrix per head of each sequence.

https://arxiv.org/abs/2412.06464. Suffixes: T packed tokens, S sequences, D hidden, X heads x head
dim, H heads, V width of a value, J key heads, R heads of a key head, K width of a key, N channels
of the convolution, L inputs the convolution looks back at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Range, Shard
from inferno.errors import UnsupportedError
from inferno.nn import CausalConv, Cut, Layer, Linear, MergedLinear, RMSNorm, State, gated_delta
from inferno.nn.batch import Batch
from inferno_qwen3_next.config import Qwen3NextConfig


def beside(group: int, both: int, width: int, heads: int, own: Sequence[int]) -> list[Range]:
    """Return the rows of a matrix that is stored group by group: `both` of the group's own, then
    twice `width` for each of its heads. All of the first are kept, and those of the heads `own`."""
    at = group * (both + 2 * heads * width)
    starts = (at + both, at + both + heads * width)
    return [(at, at + both), *((s + own[0] * width, s + own[1] * width) for s in starts)]


def swapped(x_TH: Tensor, inner: int) -> Tensor:
    """Return heads, the second axis, that were stored (outer, inner) as (inner, outer)."""
    y_TH: Tensor = x_TH.unflatten(1, (-1, inner)).transpose(1, 2).flatten(1, 2)
    return y_TH


class GatedRMSNorm(RMSNorm):
    """norm(x) · silu(gate)"""

    def forward(self, x_THV: Tensor, gate_THV: Tensor) -> Tensor:  # type: ignore[override]
        y_THV = super().forward(x_THV).float() * F.silu(gate_THV.float())
        return y_THV.to(x_THV.dtype)


class GatedDeltaNet(Layer):
    """Projections, short convolution, gated delta rule, gated norm, projection."""

    keep_fp32 = ("dt_bias", "A_log")

    def __init__(self, config: Qwen3NextConfig, layer_id: int) -> None:
        super().__init__()
        spec, hidden = config.state_spec, config.hidden_size
        self.key_heads, self.separate = config.linear_num_key_heads, config.separate_projections
        self.grouped, self.tiled = config.grouped_ba, config.tiled_heads
        heads, self.key_dim, self.value_dim = spec.tensors["state"].shape
        before, channels = spec.tensors["conv"].shape
        keys, values = self.key_heads * self.key_dim, heads * self.value_dim
        self.sizes = [keys, keys, values]
        widths = {"in_proj_qkv": channels, "in_proj_z": values}
        beta = {"in_proj_b": heads, "in_proj_a": heads}
        if not self.separate:
            widths, beta = {"in_proj_qkvz": channels + values}, {"in_proj_ba": 2 * heads}
        elif self.grouped:
            beta = {"in_proj_ba": 2 * heads}
        self.in_proj = MergedLinear(hidden, bias=False, **widths, **beta)
        self.conv1d = CausalConv(channels, before + 1)
        self.dt_bias, self.A_log = (nn.Parameter(torch.empty(heads)) for _ in range(2))
        self.norm = GatedRMSNorm(self.value_dim, config.rms_norm_eps)
        self.out_proj = Linear(values, hidden)
        self.state = State(layer_id, spec)
        self.cuts: Mapping[str, Cut] = {}

    def divide(self, shard: Shard) -> None:
        """Keep some of the value heads, and their key heads."""
        if not shard.states:
            return
        if self.tiled:
            raise UnsupportedError(
                "llama.cpp's files of Qwen3.5 order value heads otherwise than ranks divide them",
                "Run it by one rank, or the original checkpoint by several.",
            )
        (start, stop), key_heads = shard.heads(self.state.spec)
        keys, _, values = self.sizes
        span = start * self.value_dim, stop * self.value_dim
        first, last = (head * self.key_dim for head in key_heads)
        after = 2 * keys
        channels = [(first, last), (keys + first, keys + last), (after + span[0], after + span[1])]
        shared, both = values // self.value_dim // self.key_heads, 2 * self.key_dim
        qkvz, ba = list[Range](), list[Range]()
        for j in range(*key_heads):
            i = [min(max(head - j * shared, 0), shared) for head in (start, stop)]
            qkvz += beside(j, both, self.value_dim, shared, i)
            ba += beside(j, 0, 1, shared, i)
        heads = [(start, stop)]
        if not self.separate:
            self.in_proj.keep_rows(in_proj_qkvz=qkvz, in_proj_ba=ba)
        elif self.grouped:
            self.in_proj.keep_rows(in_proj_qkv=channels, in_proj_z=[span], in_proj_ba=ba)
        else:
            self.in_proj.keep_rows(
                in_proj_qkv=channels, in_proj_z=[span], in_proj_b=heads, in_proj_a=heads
            )
        self.conv1d.keep(*channels)
        self.cuts = dict.fromkeys(self.keep_fp32, Cut.rows((start, stop)))
        self.out_proj.keep_columns(span, shard)
        self.state.spec = shard.local(self.state.spec)
        self.key_heads = key_heads[1] - key_heads[0]
        self.sizes = [j - i for i, j in channels]

    def forward(self, x_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        states = self.state.load(batch)
        qkv_TN, z_TX, b_TH, a_TH = self.inputs(x_TD)
        qkv_TN, conv_SLN = self.conv1d(qkv_TN, states["conv"], batch)
        q_TX, k_TX, v_TX = torch.split(F.silu(qkv_TN), self.sizes, -1)
        q_TJK, k_TJK = (x.reshape(len(x), -1, self.key_dim) for x in (q_TX, k_TX))
        v_THV, z_THV = (x.reshape(len(x), -1, self.value_dim) for x in (v_TX, z_TX))
        decay_TH = -self.A_log.exp() * F.softplus(a_TH.float() + self.dt_bias)
        beta_TH = b_TH.float().sigmoid()
        if self.tiled:  # heads that share a key follow each other
            v_THV, decay_TH, beta_TH = (
                swapped(x, self.key_heads) for x in (v_THV, decay_TH, beta_TH)
            )
        y_THV, state_SHKV = gated_delta(
            q_TJK, k_TJK, v_THV, decay_TH, beta_TH, states["state"], batch
        )
        self.state.store(batch, conv=conv_SLN, state=state_SHKV)
        if self.tiled:
            y_THV = swapped(y_THV, y_THV.shape[1] // self.key_heads)
        y_TD: Tensor = self.out_proj(self.norm(y_THV.to(x_TD.dtype), z_THV).flatten(1))
        return y_TD

    def inputs(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values side by side, gates, and what beta and decay are made of."""
        if self.grouped:
            qkv_TN, z_TX, ba_TX = self.in_proj(x_TD)
            b_TJR, a_TJR = ba_TX.view(len(x_TD), self.key_heads, -1).chunk(2, -1)
            return qkv_TN, z_TX, b_TJR.flatten(1), a_TJR.flatten(1)
        if self.separate:
            qkv_TN, z_TX, b_TH, a_TH = self.in_proj(x_TD)
            return qkv_TN, z_TX, b_TH, a_TH
        qkvz_TX, ba_TX = (x.view(len(x), self.key_heads, -1) for x in self.in_proj(x_TD))
        shared = self.sizes[-1] // self.key_heads
        *qkv, z_TJX = torch.split(qkvz_TX, [self.key_dim, self.key_dim, shared, shared], -1)
        b_TJR, a_TJR = ba_TX.chunk(2, -1)
        qkv_TN = torch.cat([x.flatten(1) for x in qkv], -1)
        return qkv_TN, z_TJX.flatten(1), b_TJR.flatten(1), a_TJR.flatten(1)
