"""Qwen3: grouped-query attention with a norm on every query and key head.

https://arxiv.org/abs/2505.09388; reference: transformers/models/qwen3.
Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, C head dim.
"""

from __future__ import annotations

from torch import Tensor, nn

from inferno.batch import Batch
from inferno.nn import Attention, CausalLM, Decoder, DecoderLayer, GatedMLP, Linear, MergedLinear, RMSNorm, Rope, Rotation
from inferno_qwen3.config import Qwen3Config


class Qwen3Attention(nn.Module):
    def __init__(self, config: Qwen3Config, layer_id: int) -> None:
        super().__init__()
        need = config.attention_need(layer_id)
        heads_X, kv_heads_X = need.num_heads * need.head_dim, need.num_kv_heads * need.head_dim
        bias = config.attention_bias
        self.head_dim = need.head_dim
        self.qkv = MergedLinear(config.hidden_size, bias=bias, q_proj=heads_X, k_proj=kv_heads_X, v_proj=kv_heads_X)
        self.q_norm = RMSNorm(need.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(need.head_dim, config.rms_norm_eps)
        self.attention = Attention(layer_id, need)
        self.o_proj = Linear(heads_X, config.hidden_size, bias=bias)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        q_TX, k_TX, v_TX = self.qkv(x_TD)
        q_THC = rotate(q_TX.unflatten(-1, (-1, self.head_dim)), self.q_norm)
        k_THC = rotate(k_TX.unflatten(-1, (-1, self.head_dim)), self.k_norm)
        y_TD: Tensor = self.o_proj(self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch))
        return y_TD


class Qwen3ForCausalLM(CausalLM):
    def __init__(self, config: Qwen3Config) -> None:
        sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
        layers = (
            DecoderLayer(
                Qwen3Attention(config, layer_id),
                GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        rope = Rope(config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings)
        super().__init__(Decoder(layers, rope, eps=config.rms_norm_eps, **sizes), tied=config.tie_word_embeddings, **sizes)
