"""Seed-OSS: Llama with biases on queries, keys and values, and heads of a width of their own.

https://github.com/ByteDance-Seed/seed-oss; reference: transformers/models/seed_oss.
"""

from __future__ import annotations

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, SelfAttention
from inferno_seed_oss.config import SeedOssConfig


class SeedOssForCausalLM(CausalLM):
    def __init__(self, config: SeedOssConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    output_bias=config.attention_out_bias,
                ),
                GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
