"""Qwen2's mixtures of experts: Qwen2's attention, and in most layers routed experts plus a shared
one.

https://qwenlm.github.io/blog/qwen-moe, https://arxiv.org/abs/2407.10671; reference:
transformers/models/qwen2_moe. Suffixes: T packed tokens, D hidden.
"""

from __future__ import annotations

from torch import Tensor, nn

from inferno.contracts import Shard
from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    Experts,
    GatedMLP,
    Linear,
    Router,
    Routing,
    SelfAttention,
    sum_once,
)
from inferno_qwen2_moe.config import Qwen2MoeConfig


class Qwen2MoeBlock(nn.Module):
    """experts(x) + sigmoid(shared_expert_gate(x)) · shared_expert(x)"""

    def __init__(self, config: Qwen2MoeConfig) -> None:
        super().__init__()
        routing = Routing(top_k=config.num_experts_per_tok, normalize=config.norm_topk_prob)
        self.gate = Router(config.hidden_size, config.num_experts, routing)
        self.experts = Experts(config.num_experts, config.hidden_size, config.moe_intermediate_size)
        self.shared_expert = GatedMLP(config.hidden_size, config.shared_expert_intermediate_size)
        self.shared_expert_gate = Linear(config.hidden_size, 1)
        self.summed = False

    def divide(self, shard: Shard) -> None:
        """Sum once over the ranks, after both parts are added."""
        self.summed = sum_once(self.experts, self.shared_expert)

    def forward(self, x_TD: Tensor) -> Tensor:
        shared_TD = self.shared_expert_gate(x_TD).sigmoid() * self.shared_expert(x_TD)
        y_TD: Tensor = shared_TD + self.experts(x_TD, *self.gate(x_TD))
        return self.experts.ops.all_reduce(y_TD) if self.summed else y_TD


class Qwen2MoeForCausalLM(CausalLM):
    def __init__(self, config: Qwen2MoeConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.qkv_bias,
                ),
                Qwen2MoeBlock(config)
                if config.has_experts(layer_id)
                else GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
