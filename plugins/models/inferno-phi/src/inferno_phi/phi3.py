"""Phi-3, 3.5 and 4: Llama's decoder with q, k, v and gate, up stored as one matrix each.

https://arxiv.org/abs/2404.14219, https://arxiv.org/abs/2412.08905; reference: transformers/models/phi3.
Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, C head dim.
"""

from __future__ import annotations

from torch import Tensor, nn

from inferno.batch import Batch
from inferno.nn import Attention, CausalLM, Decoder, DecoderLayer, FusedGatedMLP, Linear, Rotation
from inferno_phi.config import Phi3Config


class Phi3Attention(nn.Module):
    def __init__(self, config: Phi3Config, layer_id: int) -> None:
        super().__init__()
        need = config.attention_need(layer_id)
        heads_X, kv_heads_X = need.num_heads * need.head_dim, need.num_kv_heads * need.head_dim
        self.head_dim, self.sizes = need.head_dim, [heads_X, kv_heads_X, kv_heads_X]
        self.qkv_proj = Linear(config.hidden_size, sum(self.sizes))
        self.attention = Attention(layer_id, need)
        self.o_proj = Linear(heads_X, config.hidden_size)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        q_TX, k_TX, v_TX = self.qkv_proj(x_TD).split(self.sizes, dim=-1)
        q_THC = rotate(q_TX.unflatten(-1, (-1, self.head_dim)))
        k_THC = rotate(k_TX.unflatten(-1, (-1, self.head_dim)))
        y_TD: Tensor = self.o_proj(self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch))
        return y_TD


class Phi3ForCausalLM(CausalLM):
    def __init__(self, config: Phi3Config) -> None:
        layers = (
            DecoderLayer(
                Phi3Attention(config, layer_id),
                FusedGatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
