"""Qwen3's mixtures of experts: Qwen3's attention, and in most layers routed experts instead of the
MLP.

https://arxiv.org/abs/2505.09388; reference: transformers/models/qwen3_moe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    MixtureOfExperts,
    RMSNorm,
    Routing,
    SelfAttention,
)
from inferno_qwen3_moe.config import Qwen3MoeConfig


class Qwen3MoeForCausalLM(CausalLM):
    def __init__(self, config: Qwen3MoeConfig) -> None:
        layers = (layer(config, layer_id) for layer_id in range(config.num_hidden_layers))
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)


def layer(
    config: Qwen3MoeConfig, layer_id: int, kind: Callable[..., DecoderLayer] = DecoderLayer
) -> DecoderLayer:
    """Return a layer of some kind, with the config's sizes."""
    routing = Routing(top_k=config.num_experts_per_tok, normalize=config.norm_topk_prob)
    return kind(
        SelfAttention(
            layer_id,
            config.attention_spec(layer_id),
            config.hidden_size,
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            head_norm=partial(RMSNorm, config.head_dim, config.rms_norm_eps),
        ),
        MixtureOfExperts(
            config.num_experts, config.hidden_size, config.moe_intermediate_size, routing
        )
        if config.has_experts(layer_id)
        else GatedMLP(config.hidden_size, config.intermediate_size),
        hidden_size=config.hidden_size,
        eps=config.rms_norm_eps,
    )
