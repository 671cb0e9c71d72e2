"""Llama: the plain decoder that many model families use.

https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783; reference:
transformers/models/llama.
"""

from __future__ import annotations

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, SelfAttention
from inferno_llama.config import LlamaConfig


class LlamaForCausalLM(CausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    output_bias=config.attention_bias,
                ),
                GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
