"""Qwen3-Next and Qwen3.5 (text): most layers a gated delta net, which keeps a matrix per head
instead of keys and values, every fourth gated attention.

https://arxiv.org/abs/2412.06464 (gated delta net), https://arxiv.org/abs/2505.06708 (gated
attention); reference: transformers/models/qwen3_next, qwen3_5. Suffixes: T packed tokens, S
sequences, D hidden, X heads x head dim, H heads, C head dim, J key heads of a delta net, R value
heads of a key head, K width of its keys, V of its values, N channels of its convolution, L inputs
the convolution looks back at.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.batch import Batch
from inferno.contracts import AttentionNeed
from inferno.modelconfig import FULL
from inferno.nn import (
    Attention,
    CausalConv,
    CausalLM,
    Decoder,
    Experts,
    GatedMLP,
    Linear,
    MergedLinear,
    RMSNorm,
    Rope,
    Rotation,
    Router,
    Routing,
    State,
    gated_delta,
)
from inferno_qwen3_next.config import Qwen3NextConfig

Norm = partial(RMSNorm, offset=1.0)


class GatedAttention(nn.Module):
    """Attention whose heads are each multiplied by the sigmoid of a gate, stored beside their
    query."""

    def __init__(self, config: Qwen3NextConfig, layer_id: int, need: AttentionNeed) -> None:
        super().__init__()
        heads, kv_heads, dim = need.num_heads, need.num_kv_heads, need.head_dim
        self.head_dim, bias = dim, config.attention_bias
        sizes = {"q_proj": 2 * heads * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
        self.qkv = MergedLinear(config.hidden_size, bias=bias, **sizes)
        self.q_norm = Norm(dim, config.rms_norm_eps)
        self.k_norm = Norm(dim, config.rms_norm_eps)
        self.attention = Attention(layer_id, need)
        self.o_proj = Linear(heads * dim, config.hidden_size, bias=bias)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        qg_TX, k_TX, v_TX = self.qkv(x_TD)
        q_THC, gate_THC = qg_TX.view(len(x_TD), -1, 2 * self.head_dim).chunk(2, -1)
        k_THC = k_TX.view(len(x_TD), -1, self.head_dim)
        q_THC, k_THC = rotate(q_THC, self.q_norm), rotate(k_THC, self.k_norm)
        y_TX = self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch)
        y_TD: Tensor = self.o_proj(y_TX * gate_THC.flatten(1).sigmoid())
        return y_TD


class GatedRMSNorm(RMSNorm):
    """norm(x) · silu(gate)"""

    def forward(self, x_TVC: Tensor, gate_TVC: Tensor) -> Tensor:  # type: ignore[override]
        y_TVC = super().forward(x_TVC).float() * F.silu(gate_TVC.float())
        return y_TVC.to(x_TVC.dtype)


class GatedDeltaNet(nn.Module):
    """Projections, short convolution, gated delta rule, gated norm, projection."""

    def __init__(self, config: Qwen3NextConfig, layer_id: int) -> None:
        super().__init__()
        need, hidden = config.state_need, config.hidden_size
        self.key_heads, self.separate = config.linear_num_key_heads, config.separate_projections
        heads, self.key_dim, self.value_dim = need.tensors["state"].shape
        before, channels = need.tensors["conv"].shape
        keys, values = self.key_heads * self.key_dim, heads * self.value_dim
        self.sizes = [keys, keys, values]
        self.in_proj = (
            MergedLinear(
                hidden, in_proj_qkv=channels, in_proj_z=values, in_proj_b=heads, in_proj_a=heads
            )
            if self.separate
            else MergedLinear(hidden, in_proj_qkvz=channels + values, in_proj_ba=2 * heads)
        )
        self.conv1d = CausalConv(channels, before + 1)
        self.dt_bias, self.A_log = (nn.Parameter(torch.empty(heads)) for _ in range(2))
        self.exact = ("dt_bias", "A_log")
        self.norm = GatedRMSNorm(self.value_dim, config.rms_norm_eps)
        self.out_proj = Linear(values, hidden)
        self.state = State(layer_id, need)

    def forward(self, x_TD: Tensor, rotation: Any, batch: Batch) -> Tensor:
        held, starts = self.state.load(batch), batch.query_starts
        qkv_TN, z_TX, b_TH, a_TH = self.inputs(x_TD)
        qkv_TN, conv_SLN = self.conv1d(qkv_TN, held["conv"], starts)
        q_TX, k_TX, v_TX = torch.split(F.silu(qkv_TN), self.sizes, -1)
        q_TJK, k_TJK = (x.reshape(len(x), -1, self.key_dim) for x in (q_TX, k_TX))
        v_THV, z_THV = (x.reshape(len(x), -1, self.value_dim) for x in (v_TX, z_TX))
        decay_TH = -self.A_log.exp() * F.softplus(a_TH.float() + self.dt_bias)
        y_THV, state_SHKV = gated_delta(
            q_TJK, k_TJK, v_THV, decay_TH, b_TH.float().sigmoid(), held["state"], starts
        )
        self.state.store(batch, conv=conv_SLN, state=state_SHKV)
        y_TD: Tensor = self.out_proj(self.norm(y_THV.to(x_TD.dtype), z_THV).flatten(1))
        return y_TD

    def inputs(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values side by side, gates, and what beta and decay are made of."""
        if self.separate:
            qkv_TN, z_TX, b_TH, a_TH = self.in_proj(x_TD)
            return qkv_TN, z_TX, b_TH, a_TH
        qkvz_TX, ba_TX = (x.view(len(x), self.key_heads, -1) for x in self.in_proj(x_TD))
        shared = self.sizes[-1] // self.key_heads
        *qkv, z_TJX = torch.split(qkvz_TX, [self.key_dim, self.key_dim, shared, shared], -1)
        b_TJR, a_TJR = ba_TX.chunk(2, -1)
        qkv_TN = torch.cat([x.flatten(1) for x in qkv], -1)
        return qkv_TN, z_TJX.flatten(1), b_TJR.flatten(1), a_TJR.flatten(1)


class SparseBlock(nn.Module):
    """experts(x) + sigmoid(shared_expert_gate(x)) · shared_expert(x)"""

    def __init__(self, config: Qwen3NextConfig) -> None:
        super().__init__()
        routing = Routing(top_k=config.num_experts_per_tok, normalize=config.norm_topk_prob)
        self.gate = Router(config.hidden_size, config.num_experts, routing)
        self.experts = Experts(config.num_experts, config.hidden_size, config.moe_intermediate_size)
        self.shared_expert = GatedMLP(config.hidden_size, config.shared_expert_intermediate_size)
        self.shared_expert_gate = Linear(config.hidden_size, 1)

    def forward(self, x_TD: Tensor) -> Tensor:
        shared_TD = self.shared_expert_gate(x_TD).sigmoid() * self.shared_expert(x_TD)
        y_TD: Tensor = shared_TD + self.experts(x_TD, *self.gate(x_TD))
        return y_TD


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)). The mixer is stored under its kind's name."""

    def __init__(self, config: Qwen3NextConfig, layer_id: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        if config.layer_types[layer_id] == FULL:
            self.self_attn = GatedAttention(config, layer_id, config.attention_need(layer_id))
        else:
            self.linear_attn = GatedDeltaNet(config, layer_id)
        self.full = config.layer_types[layer_id] == FULL
        sparse = config.has_experts(layer_id)
        self.mlp = SparseBlock(config) if sparse else GatedMLP(hidden, config.intermediate_size)
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden, eps), Norm(hidden, eps)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        mixer = self.self_attn if self.full else self.linear_attn
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        x_TD, h_TD = self.post_attention_layernorm.after(x_TD, mixer(h_TD, rotation, batch))
        return x_TD, self.mlp(h_TD)


class Qwen3NextForCausalLM(CausalLM):
    """Every generation's: the config says which parts it has."""

    def __init__(self, config: Qwen3NextConfig) -> None:
        decoder = Decoder(
            (Layer(config, layer_id) for layer_id in range(config.num_hidden_layers)),
            Rope(
                config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings
            ),
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
            norm=Norm,
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
