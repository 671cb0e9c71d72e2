"""Mistral: Llama's decoder, with grouped queries and, at first, a sliding window.

https://arxiv.org/abs/2310.06825; reference: transformers/models/mistral and ministral.
"""

from __future__ import annotations

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, SelfAttention
from inferno_mistral.config import MistralConfig


class MistralForCausalLM(CausalLM):
    def __init__(self, config: MistralConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(layer_id, config.attention_spec(layer_id), config.hidden_size),
                GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
