"""Qwen3's mixtures of experts: Qwen3's attention, and in most layers routed experts instead of the MLP.

https://arxiv.org/abs/2505.09388; reference: transformers/models/qwen3_moe.
Suffixes: T packed tokens, D hidden.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from inferno.nn import CausalLM, Decoder, DecoderLayer, Experts, GatedMLP, RMSNorm, Rope, Router, Routing, SelfAttention
from inferno_qwen3_moe.config import Qwen3MoeConfig


class Qwen3MoeBlock(nn.Module):
    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__()
        routing = Routing(top_k=config.num_experts_per_tok, normalize=config.norm_topk_prob)
        self.gate = Router(config.hidden_size, config.num_experts, routing)
        self.experts = Experts(config.num_experts, config.hidden_size, config.moe_intermediate_size)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.experts(x_TD, *self.gate(x_TD))
        return y_TD


class Qwen3MoeForCausalLM(CausalLM):
    def __init__(self, config: Qwen3MoeConfig) -> None:
        head_norm = partial(RMSNorm, config.head_dim, config.rms_norm_eps)
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id, config.attention_need, config.hidden_size, bias=config.attention_bias,
                    output_bias=config.attention_bias, head_norm=head_norm,
                ),
                Qwen3MoeBlock(config)
                if config.has_experts(layer_id)
                else GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )  # fmt: skip
        rope = Rope(config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings)
        decoder = Decoder(
            layers, rope, vocab_size=config.vocab_size, hidden_size=config.hidden_size, eps=config.rms_norm_eps
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
