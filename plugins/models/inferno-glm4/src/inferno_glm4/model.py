"""GLM-4: half of each head rotated in adjacent pairs, gate and up in one matrix; since 0414, pre-
and post-norms.

https://arxiv.org/abs/2406.12793; reference: transformers/models/glm, glm4.
"""

from __future__ import annotations

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
    def __init__(self, config: Glm4Config) -> None:
        layers = (
            DecoderLayer(
                _attention(config, layer_id),
                FusedGatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(
            Decoder.of(config, layers, interleaved=True), tied=config.tie_word_embeddings
        )


class Glm4ForCausalLM(CausalLM):
    def __init__(self, config: Glm4Config) -> None:
        layers = (
            SandwichDecoderLayer(
                _attention(config, layer_id),
                FusedGatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
                norms=_NORMS,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(
            Decoder.of(config, layers, interleaved=True), tied=config.tie_word_embeddings
        )


def _attention(config: Glm4Config, layer_id: int) -> SelfAttention:
    spec = config.attention_spec(layer_id)
    return SelfAttention(layer_id, spec, config.hidden_size, bias=config.attention_bias)
