"""Phi-3, 3.5 and 4: Llama's decoder with q, k, v and gate, up stored as one matrix each.

https://arxiv.org/abs/2404.14219, https://arxiv.org/abs/2412.08905; reference:
transformers/models/phi3.
"""

from __future__ import annotations

from inferno.nn import CausalLM, Decoder, DecoderLayer, FusedGatedMLP, SelfAttention
from inferno_phi.config import Phi3Config


class Phi3ForCausalLM(CausalLM):
    def __init__(self, config: Phi3Config) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id, config.attention_spec(layer_id), config.hidden_size, fused=True
                ),
                FusedGatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
