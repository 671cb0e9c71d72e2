"""Mistral: Llama's decoder, with grouped queries and, at first, a sliding window.

https://arxiv.org/abs/2310.06825; reference: transformers/models/mistral and ministral.
"""

from __future__ import annotations

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, Rope, SelfAttention
from inferno_mistral.config import MistralConfig


class MistralForCausalLM(CausalLM):
    def __init__(self, config: MistralConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(layer_id, config.attention_need(layer_id), config.hidden_size),
                GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        rope = Rope(config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings)
        decoder = Decoder(
            layers, rope, vocab_size=config.vocab_size, hidden_size=config.hidden_size, eps=config.rms_norm_eps
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
