"""GLM-4.5: grouped-query attention, half of each head rotated, and after the first layers routed
experts plus a shared one.

https://arxiv.org/abs/2508.06471; reference: transformers/models/glm4_moe.
"""

from __future__ import annotations

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
from inferno_glm4_moe.config import Glm4MoeConfig


class Glm4MoeForCausalLM(CausalLM):
    def __init__(self, config: Glm4MoeConfig) -> None:
        routing = Routing(
            top_k=config.num_experts_per_tok,
            scoring="sigmoid",
            normalize=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
            num_groups=config.n_group,
            top_groups=config.topk_group,
            group_score="top2",
        )
        experts = partial(
            MixtureOfExperts,
            config.num_experts,
            config.hidden_size,
            config.moe_intermediate_size,
            routing,
            correction=True,
            shared_size=config.n_shared_experts * config.moe_intermediate_size,
        )
        head_norm = (
            partial(RMSNorm, config.head_dim, config.rms_norm_eps) if config.use_qk_norm else None
        )
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    head_norm=head_norm,
                ),
                experts()
                if layer_id >= config.first_k_dense_replace
                else GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
