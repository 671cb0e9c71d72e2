"""OLMo 2 and 3: queries and keys normalized over all heads together, and what attention and MLP
add, not what they read. OLMoE: norms before both, and experts in the place of the MLP.

https://arxiv.org/abs/2501.00656 (OLMo 2), https://arxiv.org/abs/2512.13961 (OLMo 3),
https://arxiv.org/abs/2409.02060 (OLMoE); reference: transformers/models/olmo2, olmo3, olmoe.
"""

from __future__ import annotations

from functools import partial

from inferno.configs import FULL, SLIDING
from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    MixtureOfExperts,
    PostNormDecoderLayer,
    ProjectionNorm,
    RopeByKind,
    Routing,
    SelfAttention,
)
from inferno_olmo.config import Olmo2Config, Olmo3Config, OlmoeConfig

Config = Olmo2Config | Olmo3Config | OlmoeConfig


def _attention(config: Config, layer_id: int, kind: str = "") -> SelfAttention:
    return SelfAttention(
        layer_id,
        config.attention_spec(layer_id),
        config.hidden_size,
        bias=config.attention_bias,
        output_bias=config.attention_bias,
        projection_norm=partial(ProjectionNorm, eps=config.rms_norm_eps),
        kind=kind,
    )


def _layer(config: Config, layer_id: int, kind: str = "") -> PostNormDecoderLayer:
    return PostNormDecoderLayer(
        _attention(config, layer_id, kind),
        GatedMLP(config.hidden_size, config.intermediate_size),
        hidden_size=config.hidden_size,
        eps=config.rms_norm_eps,
    )


class Olmo2ForCausalLM(CausalLM):
    def __init__(self, config: Olmo2Config) -> None:
        layers = (_layer(config, layer_id) for layer_id in range(config.num_hidden_layers))
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)


class Olmo3ForCausalLM(CausalLM):
    def __init__(self, config: Olmo3Config) -> None:
        layers = (
            _layer(config, layer_id, kind) for layer_id, kind in enumerate(config.layer_types)
        )
        rope = RopeByKind.of(config, {FULL: config.rope, SLIDING: config.local_rope})
        super().__init__(Decoder.of(config, layers, rope=rope), tied=config.tie_word_embeddings)


class OlmoeForCausalLM(CausalLM):
    def __init__(self, config: OlmoeConfig) -> None:
        routing = Routing(top_k=config.num_experts_per_tok, normalize=config.norm_topk_prob)
        layers = (
            DecoderLayer(
                _attention(config, layer_id),
                MixtureOfExperts(
                    config.num_experts, config.hidden_size, config.intermediate_size, routing
                ),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
