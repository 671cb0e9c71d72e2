"""Mistral: Llama's decoder, with grouped queries and, at first, a sliding window. Mixtral: experts
in the place of its MLP. Ministral 3: queries that are larger the further they are in a context.

https://arxiv.org/abs/2310.06825, https://arxiv.org/abs/2401.04088; reference:
transformers/models/mistral, ministral, ministral3 and mixtral.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    MixtureOfExperts,
    QueryScalingRope,
    Routing,
    SelfAttention,
)
from inferno_mistral.config import Ministral3Config, MistralConfig, MixtralConfig


class MistralForCausalLM(CausalLM):
    def __init__(self, config: MistralConfig) -> None:
        super().__init__(Decoder.of(config, layers(config)), tied=config.tie_word_embeddings)


class Ministral3ForCausalLM(CausalLM):
    def __init__(self, config: Ministral3Config) -> None:
        decoder = Decoder.of(config, layers(config), rope=scaled_rope(config))
        super().__init__(decoder, tied=config.tie_word_embeddings)


def scaled_rope(config: Ministral3Config) -> QueryScalingRope:
    """Return the rotary embedding that also scales queries."""
    return QueryScalingRope(
        config.head_dim,
        config.rope,
        max_position_embeddings=config.max_position_embeddings,
    )


def layers(config: MistralConfig | Ministral3Config) -> Iterator[DecoderLayer]:
    """Build the layers of both."""
    for layer_id in range(config.num_hidden_layers):
        yield DecoderLayer(
            SelfAttention(layer_id, config.attention_spec(layer_id), config.hidden_size),
            GatedMLP(config.hidden_size, config.intermediate_size),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
        )


class MixtralForCausalLM(CausalLM):
    def __init__(self, config: MixtralConfig) -> None:
        routing = Routing(top_k=config.num_experts_per_tok, normalize=True)
        layers = (
            DecoderLayer(
                SelfAttention(layer_id, config.attention_spec(layer_id), config.hidden_size),
                MixtureOfExperts(
                    config.num_experts,
                    config.hidden_size,
                    config.intermediate_size,
                    routing,
                    names=("w1", "w3", "w2"),
                ),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
                mlp_name="block_sparse_moe",
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
