"""DeepSeekMoE, the first of DeepSeek's mixtures: Llama's attention, and after the first layers many
small experts beside a shared one.

https://arxiv.org/abs/2401.06066; reference: transformers/models/deepseek_ocr2, whose text model is
one.
"""

from __future__ import annotations

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    MixtureOfExperts,
    Routing,
    SelfAttention,
)
from inferno_deepseek.first_config import DeepseekMoEConfig


class DeepseekForCausalLM(CausalLM):
    def __init__(self, config: DeepseekMoEConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    output_bias=config.attention_bias,
                ),
                _experts(config)
                if layer_id >= config.first_k_dense_replace
                else GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)


def _experts(config: DeepseekMoEConfig) -> MixtureOfExperts:
    size = config.moe_intermediate_size
    routing = Routing(
        top_k=config.num_experts_per_tok,
        scoring="softmax",
        normalize=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
    )
    return MixtureOfExperts(
        config.num_experts,
        config.hidden_size,
        size,
        routing,
        shared_size=config.n_shared_experts * size,
    )
