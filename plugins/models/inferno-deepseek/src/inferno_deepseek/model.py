"""DeepSeek-V2 and V3: attention over a latent, and mixtures of many small experts.

https://arxiv.org/abs/2405.04434, https://arxiv.org/abs/2412.19437; reference:
transformers/models/deepseek_v2, deepseek_v3.
"""

from __future__ import annotations

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, MixtureOfExperts, Routing
from inferno_deepseek.attention import LatentAttention
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
        super().__init__(_decoder(config, routing), tied=config.tie_word_embeddings)


class DeepseekV3ForCausalLM(CausalLM):
    def __init__(self, config: DeepseekV3Config) -> None:
        routing = Routing(
            top_k=config.num_experts_per_tok,
            scoring="sigmoid",
            normalize=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
            num_groups=config.n_group,
            top_groups=config.topk_group,
            group_score="top2",
        )
        decoder = _decoder(config, routing, correction=True)
        super().__init__(decoder, tied=config.tie_word_embeddings)


def _decoder(config: DeepseekConfig, routing: Routing, *, correction: bool = False) -> Decoder:
    layers = (
        DecoderLayer(
            LatentAttention(config, layer_id),
            GatedMLP(config.hidden_size, config.intermediate_size)
            if layer_id < config.first_k_dense_replace
            else MixtureOfExperts(
                config.n_routed_experts,
                config.hidden_size,
                config.moe_intermediate_size,
                routing,
                correction=correction,
                shared_size=config.n_shared_experts * config.moe_intermediate_size,
            ),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
        )
        for layer_id in range(config.num_hidden_layers)
    )
    return Decoder.of(config, layers, interleaved=config.rope_interleave)
