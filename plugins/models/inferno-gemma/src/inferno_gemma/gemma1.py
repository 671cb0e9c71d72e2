"""Gemma 1: norms by 1 + w, scaled embeddings, GeGLU.

https://arxiv.org/abs/2403.08295; reference: transformers/models/gemma.
"""

from __future__ import annotations

from functools import partial

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, RMSNorm, SelfAttention
from inferno_gemma.config import GemmaConfig

Norm = partial(RMSNorm, offset=1.0)


class GemmaForCausalLM(CausalLM):
    def __init__(self, config: GemmaConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    output_bias=config.attention_bias,
                ),
                GatedMLP(config.hidden_size, config.intermediate_size, activation="gelu_tanh"),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
                norm=Norm,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        decoder = Decoder.of(config, layers, norm=Norm, embedding_scale=config.hidden_size**0.5)
        super().__init__(decoder, tied=config.tie_word_embeddings)
