"""GLM-4.5: grouped-query attention, half of each head rotated, and after the first layers routed
experts plus a shared one.

https://arxiv.org/abs/2508.06471; reference: transformers/models/glm4_moe.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    MixtureOfExperts,
    MTPLayer,
    MTPLayers,
    RMSNorm,
    Routing,
    SelfAttention,
)
from inferno_glm4_moe.config import Glm4MoeConfig


class Glm4MoeForCausalLM(CausalLM):
    def __init__(self, config: Glm4MoeConfig) -> None:
        layers = (
            DecoderLayer(
                _attention(config, layer_id),
                _experts(config)
                if layer_id >= config.first_k_dense_replace
                else GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)


def mtp_layers(config: Glm4MoeConfig, model: Glm4MoeForCausalLM) -> MTPLayers:
    layers = (
        MTPLayer(
            _attention(config, config.num_hidden_layers + i),
            _experts(config),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
        )
        for i in range(config.num_nextn_predict_layers)
    )
    return MTPLayers(model, layers)


def _attention(config: Glm4MoeConfig, layer_id: int) -> nn.Module:
    head_norm = partial(RMSNorm, config.head_dim, config.rms_norm_eps)
    return SelfAttention(
        layer_id,
        config.attention_spec(layer_id),
        config.hidden_size,
        bias=config.attention_bias,
        head_norm=head_norm if config.use_qk_norm else None,
    )


def _experts(config: Glm4MoeConfig) -> nn.Module:
    routing = Routing(
        top_k=config.num_experts_per_tok,
        scoring="sigmoid",
        normalize=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        num_groups=config.n_group,
        top_groups=config.topk_group,
        group_score="top2",
    )
    return MixtureOfExperts(
        config.num_experts,
        config.hidden_size,
        config.moe_intermediate_size,
        routing,
        correction=True,
        shared_size=config.n_shared_experts * config.moe_intermediate_size,
    )
