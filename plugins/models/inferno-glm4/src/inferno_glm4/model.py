"""GLM-4: part of each head turned in neighbouring pairs, gate and up in one matrix; from 0414 on
norms on both sides.

https://arxiv.org/abs/2406.12793; reference: transformers/models/glm, glm4.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    FusedGatedMLP,
    SandwichDecoderLayer,
    SelfAttention,
)
from inferno_glm4.config import Glm4Config

_NORMS = (
    "input_layernorm",
    "post_self_attn_layernorm",
    "post_attention_layernorm",
    "post_mlp_layernorm",
)


class GlmForCausalLM(CausalLM):
    def __init__(self, config: Glm4Config, layer: Any = DecoderLayer) -> None:
        layers = (
            layer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    fused=config.fused_qkv,
                ),
                FusedGatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(
            Decoder.of(config, layers, interleaved=True), tied=config.tie_word_embeddings
        )


class Glm4ForCausalLM(GlmForCausalLM):
    def __init__(self, config: Glm4Config) -> None:
        super().__init__(config, partial(SandwichDecoderLayer, norms=_NORMS))
