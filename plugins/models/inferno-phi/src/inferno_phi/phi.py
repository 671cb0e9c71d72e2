"""Phi-1, 1.5 and 2: attention and MLP side by side, biases everywhere, heads of which a part turns.

https://arxiv.org/abs/2309.05463; reference: transformers/models/phi.
Suffixes: T packed tokens, D hidden, I inner width, X heads x head dim, H heads, C head dim.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from inferno.nn import (
    Attention,
    CausalLM,
    Decoder,
    LayerNorm,
    Linear,
    MergedLinear,
    ParallelDecoderLayer,
    Rope,
    Rotation,
)
from inferno.nn.batch import Batch
from inferno_phi.config import PhiConfig


class PhiAttention(nn.Module):
    def __init__(self, config: PhiConfig, layer_id: int) -> None:
        super().__init__()
        spec = config.attention_spec(layer_id)
        heads_X, kv_heads_X = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.sizes = [heads_X, kv_heads_X, kv_heads_X]
        if config.fused_qkv:
            self.qkv_proj = Linear(config.hidden_size, sum(self.sizes), bias=True)
        else:
            self.qkv = MergedLinear(
                config.hidden_size, bias=True, q_proj=heads_X, k_proj=kv_heads_X, v_proj=kv_heads_X
            )
        self.fused = config.fused_qkv
        normed = config.qk_layernorm
        self.q_layernorm = (
            LayerNorm(spec.head_dim, config.layer_norm_eps) if normed else nn.Identity()
        )
        self.k_layernorm = (
            LayerNorm(spec.head_dim, config.layer_norm_eps) if normed else nn.Identity()
        )
        self.head_dim = spec.head_dim
        self.attention = Attention(layer_id, spec)
        self.dense = Linear(heads_X, config.hidden_size, bias=True)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        q_TX, k_TX, v_TX = (
            self.qkv_proj(x_TD).split(self.sizes, dim=-1) if self.fused else self.qkv(x_TD)
        )
        q_THC = rotate(self.q_layernorm(q_TX.unflatten(-1, (-1, self.head_dim))))
        k_THC = rotate(self.k_layernorm(k_TX.unflatten(-1, (-1, self.head_dim))))
        y_TD: Tensor = self.dense(self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch))
        return y_TD


class PhiMLP(nn.Module):
    def __init__(self, config: PhiConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.fc2(F.gelu(self.fc1(x_TD), approximate="tanh"))
        return y_TD


class PhiDecoder(Decoder):
    """Its last norm is stored as `final_layernorm`."""

    def __init__(self, config: PhiConfig) -> None:
        layers = (
            ParallelDecoderLayer(
                PhiAttention(config, layer_id),
                PhiMLP(config),
                hidden_size=config.hidden_size,
                eps=config.layer_norm_eps,
                norm=LayerNorm,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        rope = Rope(
            config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings
        )
        super().__init__(
            layers,
            rope,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            eps=config.layer_norm_eps,
            norm=LayerNorm,
        )
        self.final_layernorm = self._modules.pop("norm")

    @property
    def norm(self) -> nn.Module | None:
        return self.final_layernorm


class PhiForCausalLM(CausalLM):
    def __init__(self, config: PhiConfig) -> None:
        super().__init__(PhiDecoder(config), tied=False, bias=True)
