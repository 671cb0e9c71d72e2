"""Llama: the plain decoder that many families are configs of.

https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783; reference: transformers/models/llama.
Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, C head dim.
"""

from __future__ import annotations

from torch import Tensor, nn

from inferno.batch import Batch
from inferno.nn import Attention, CausalLM, Decoder, DecoderLayer, GatedMLP, Linear, MergedLinear, Rope, Rotation
from inferno_llama.config import LlamaConfig


class LlamaAttention(nn.Module):
    def __init__(self, config: LlamaConfig, layer_id: int) -> None:
        super().__init__()
        need = config.attention_need
        heads_X, kv_heads_X = need.num_heads * need.head_dim, need.num_kv_heads * need.head_dim
        bias = config.attention_bias
        self.head_dim = need.head_dim
        self.qkv = MergedLinear(config.hidden_size, bias=bias, q_proj=heads_X, k_proj=kv_heads_X, v_proj=kv_heads_X)
        self.attention = Attention(layer_id, need)
        self.o_proj = Linear(heads_X, config.hidden_size, bias=bias)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        q_TX, k_TX, v_TX = self.qkv(x_TD)
        q_THC = rotate(q_TX.unflatten(-1, (-1, self.head_dim)))
        k_THC = rotate(k_TX.unflatten(-1, (-1, self.head_dim)))
        y_TD: Tensor = self.o_proj(self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch))
        return y_TD


class LlamaForCausalLM(CausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
        layers = (
            DecoderLayer(
                LlamaAttention(config, layer_id),
                GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        rope = Rope(config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings)
        super().__init__(Decoder(layers, rope, eps=config.rms_norm_eps, **sizes), tied=config.tie_word_embeddings, **sizes)
