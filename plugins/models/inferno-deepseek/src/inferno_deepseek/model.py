"""DeepSeek-V2 and V3: latent attention (MLA), and mixtures of many small experts.

https://arxiv.org/abs/2405.04434, https://arxiv.org/abs/2412.19437; reference:
transformers/models/deepseek_v2, deepseek_v3.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    MixtureOfExperts,
    MTPLayer,
    MTPLayers,
    Routing,
)
from inferno_deepseek.attention import latent_attention
from inferno_deepseek.config import DeepseekConfig, DeepseekV2Config, DeepseekV3Config


class DeepseekV2ForCausalLM(CausalLM):
    def __init__(self, config: DeepseekV2Config) -> None:
        routing = Routing(
            top_k=config.num_experts_per_tok,
            scoring="softmax",
            scale=config.routed_scaling_factor,
            num_groups=config.num_groups,
            top_groups=config.topk_group,
            group_score="max",
        )
        decoder = Decoder.of(config, _layers(config, routing), interleaved=True)
        super().__init__(decoder, tied=config.tie_word_embeddings)


class DeepseekV3ForCausalLM(CausalLM):
    def __init__(self, config: DeepseekV3Config) -> None:
        layers = _layers(config, _routing(config), correction=True)
        decoder = Decoder.of(config, layers, interleaved=config.rope_interleave)
        super().__init__(decoder, tied=config.tie_word_embeddings)


def mtp_layers(config: DeepseekV3Config, model: DeepseekV3ForCausalLM) -> MTPLayers:
    layers = (
        MTPLayer(
            latent_attention(config, config.num_hidden_layers + i),
            _experts(config, _routing(config), correction=True),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
        )
        for i in range(config.num_nextn_predict_layers)
    )
    return MTPLayers(model, layers)


def _routing(config: DeepseekV3Config) -> Routing:
    return Routing(
        top_k=config.num_experts_per_tok,
        scoring="sigmoid",
        normalize=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        num_groups=config.n_group,
        top_groups=config.topk_group,
        group_score="top2",
    )


def _layers(
    config: DeepseekConfig, routing: Routing, *, correction: bool = False
) -> Iterator[DecoderLayer]:
    for layer_id in range(config.num_hidden_layers):
        dense = layer_id < config.first_k_dense_replace
        yield DecoderLayer(
            latent_attention(config, layer_id),
            GatedMLP(config.hidden_size, config.intermediate_size)
            if dense
            else _experts(config, routing, correction=correction),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
        )


def _experts(config: DeepseekConfig, routing: Routing, *, correction: bool) -> MixtureOfExperts:
    size = config.moe_intermediate_size
    return MixtureOfExperts(
        config.n_routed_experts,
        config.hidden_size,
        size,
        routing,
        correction=correction,
        shared_size=config.n_shared_experts * size,
    )
