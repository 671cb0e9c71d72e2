"""Qwen3-Next and Qwen3.5 (text): three of four layers are gated delta nets, every fourth gated
attention.

https://arxiv.org/abs/2505.06708 (gated attention); reference: transformers/models/qwen3_next,
qwen3_5. Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, C head dim.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from inferno.configs import FULL
from inferno.contracts import AttentionSpec, Shard
from inferno.nn import (
    Attention,
    CausalLM,
    Decoder,
    Experts,
    GatedMLP,
    Linear,
    MergedLinear,
    RMSNorm,
    Rotation,
    Router,
    Routing,
    sum_once,
)
from inferno.nn.batch import Batch
from inferno_qwen3_next.config import Qwen3NextConfig
from inferno_qwen3_next.delta_net import GatedDeltaNet

Norm = partial(RMSNorm, offset=1.0)


class GatedAttention(nn.Module):
    """Attention whose heads are each multiplied by the sigmoid of a gate, stored beside their
    query."""

    def __init__(self, config: Qwen3NextConfig, layer_id: int, spec: AttentionSpec) -> None:
        super().__init__()
        heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.head_dim, bias = dim, config.attention_bias
        sizes = {"q_proj": 2 * heads * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
        self.qkv = MergedLinear(config.hidden_size, bias=bias, **sizes)
        self.q_norm = Norm(dim, config.rms_norm_eps)
        self.k_norm = Norm(dim, config.rms_norm_eps)
        self.attention = Attention(layer_id, spec)
        self.o_proj = Linear(heads * dim, config.hidden_size, bias=bias)

    def divide(self, shard: Shard) -> None:
        """Keep some of the heads."""
        if not shard.attention:
            return
        dim = self.head_dim
        q, k = ((i * dim, j * dim) for i, j in shard.heads(self.attention.spec))
        self.qkv.keep_rows(q_proj=[(2 * q[0], 2 * q[1])], k_proj=[k], v_proj=[k])
        self.o_proj.keep_columns(q, shard)
        self.attention.spec = shard.local(self.attention.spec)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        qg_TX, k_TX, v_TX = self.qkv(x_TD)
        q_THC, gate_THC = qg_TX.view(len(x_TD), -1, 2 * self.head_dim).chunk(2, -1)
        k_THC = k_TX.view(len(x_TD), -1, self.head_dim)
        q_THC, k_THC = rotate(q_THC, self.q_norm), rotate(k_THC, self.k_norm)
        y_TX = self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch)
        y_TD: Tensor = self.o_proj(y_TX * gate_THC.flatten(1).sigmoid())
        return y_TD


class SparseBlock(nn.Module):
    """experts(x) + sigmoid(shared_expert_gate(x)) · shared_expert(x)"""

    def __init__(self, config: Qwen3NextConfig) -> None:
        super().__init__()
        routing = Routing(top_k=config.num_experts_per_tok, normalize=config.norm_topk_prob)
        self.gate = Router(config.hidden_size, config.num_experts, routing)
        self.experts = Experts(config.num_experts, config.hidden_size, config.moe_intermediate_size)
        self.shared_expert = GatedMLP(config.hidden_size, config.shared_expert_intermediate_size)
        self.shared_expert_gate = Linear(config.hidden_size, 1)
        self.summed = False

    def divide(self, shard: Shard) -> None:
        """Sum once over the ranks, after both parts are added."""
        self.summed = sum_once(self.experts, self.shared_expert)

    def forward(self, x_TD: Tensor) -> Tensor:
        shared_TD = self.shared_expert_gate(x_TD).sigmoid() * self.shared_expert(x_TD)
        y_TD: Tensor = shared_TD + self.experts(x_TD, *self.gate(x_TD))
        return self.experts.ops.all_reduce(y_TD) if self.summed else y_TD


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)). The mixer is stored under its kind's name."""

    def __init__(self, config: Qwen3NextConfig, layer_id: int, *, mtp: int | None = None) -> None:
        """`mtp` is its number among the layers of multi-token prediction, which all attend."""
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.full = mtp is not None or config.layer_types[layer_id] == FULL
        if self.full:
            self.self_attn = GatedAttention(config, layer_id, config.attention_spec(layer_id))
        else:
            self.linear_attn = GatedDeltaNet(config, layer_id)
        sparse = config.has_experts(layer_id if mtp is None else mtp)
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
        layers = (Layer(config, layer_id) for layer_id in range(config.num_hidden_layers))
        decoder = Decoder.of(config, layers, norm=Norm)
        super().__init__(decoder, tied=config.tie_word_embeddings)
