"""Kimi-Linear: three of four layers are Kimi delta attention, the fourth latent attention without
positions; the feed-forward layers are DeepSeek-V3's.

https://arxiv.org/abs/2510.26692; reference: transformers/models/kimi_linear.
"""

from __future__ import annotations

from torch import nn

from inferno.configs import FULL
from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    LatentAttention,
    MixtureOfExperts,
    NoRope,
    Routing,
)
from inferno_kimi_linear.config import KimiLinearConfig
from inferno_kimi_linear.delta_attention import DeltaAttention


class KimiLinearForCausalLM(CausalLM):
    def __init__(self, config: KimiLinearConfig) -> None:
        layers = (_layer(config, layer_id) for layer_id in range(config.num_hidden_layers))
        decoder = Decoder.of(config, layers, rope=NoRope())
        super().__init__(decoder, tied=config.tie_word_embeddings)


def _layer(config: KimiLinearConfig, layer_id: int) -> DecoderLayer:
    dense = layer_id < config.first_k_dense_replace
    return DecoderLayer(
        _mixer(config, layer_id),
        GatedMLP(config.hidden_size, config.intermediate_size) if dense else _experts(config),
        hidden_size=config.hidden_size,
        eps=config.rms_norm_eps,
        mlp_name="mlp" if dense else "block_sparse_moe",
    )


def _mixer(config: KimiLinearConfig, layer_id: int) -> nn.Module:
    if config.layer_types[layer_id] != FULL:
        return DeltaAttention(config, layer_id)
    return LatentAttention(
        layer_id,
        config.attention_spec(layer_id),
        hidden_size=config.hidden_size,
        nope=config.qk_nope_head_dim,
        rotated=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        q_lora_rank=config.q_lora_rank,
    )


def _experts(config: KimiLinearConfig) -> MixtureOfExperts:
    size = config.moe_intermediate_size
    routing = Routing(
        top_k=config.num_experts_per_token,
        scoring="sigmoid",
        normalize=config.moe_renormalize,
        scale=config.routed_scaling_factor,
        num_groups=config.num_expert_group,
        top_groups=config.topk_group,
        group_score="top2",
    )
    return MixtureOfExperts(
        config.num_experts,
        config.hidden_size,
        size,
        routing,
        correction=True,
        shared_size=config.num_shared_experts * size,
        names=("w1", "w3", "w2"),
    )
