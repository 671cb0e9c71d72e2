"""GLM-4.5: grouped-query attention, half of each head rotated, and beyond the first layers routed experts beside a shared one.

https://arxiv.org/abs/2508.06471; reference: transformers/models/glm4_moe.
Suffixes: T packed tokens, D hidden.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from inferno.nn import CausalLM, Decoder, DecoderLayer, Experts, GatedMLP, RMSNorm, Rope, Router, Routing, SelfAttention
from inferno_glm4_moe.config import Glm4MoeConfig


class Glm4MoeBlock(nn.Module):
    def __init__(self, config: Glm4MoeConfig) -> None:
        super().__init__()
        routing = Routing(
            top_k=config.num_experts_per_tok, scoring="sigmoid", normalize=config.norm_topk_prob,
            scale=config.routed_scaling_factor, num_groups=config.n_group, top_groups=config.topk_group, group_score="top2",
        )  # fmt: skip
        self.gate = Router(config.hidden_size, config.num_experts, routing, correction=True)
        self.experts = Experts(config.num_experts, config.hidden_size, config.moe_intermediate_size)
        self.shared_experts = GatedMLP(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.shared_experts(x_TD) + self.experts(x_TD, *self.gate(x_TD))
        return y_TD


class Glm4MoeForCausalLM(CausalLM):
    def __init__(self, config: Glm4MoeConfig) -> None:
        head_norm = partial(RMSNorm, config.head_dim, config.rms_norm_eps) if config.use_qk_norm else None
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id, config.attention_need, config.hidden_size, bias=config.attention_bias, head_norm=head_norm
                ),
                Glm4MoeBlock(config)
                if layer_id >= config.first_k_dense_replace
                else GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        rope = Rope(config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings)
        decoder = Decoder(
            layers, rope, vocab_size=config.vocab_size, hidden_size=config.hidden_size, eps=config.rms_norm_eps
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
