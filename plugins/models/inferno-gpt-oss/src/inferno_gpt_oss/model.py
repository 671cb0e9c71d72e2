"""gpt-oss: mixtures of experts, sliding windows in every other layer, a learned sink per head.

https://arxiv.org/abs/2508.10925; reference: transformers/models/gpt_oss. Suffixes: T packed tokens,
D hidden, N pairs of a token and one of its experts, I inner width of an expert.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inferno.nn import CausalLM, Decoder, DecoderLayer, Experts, Router, Routing, SelfAttention
from inferno_gpt_oss.config import GptOssConfig


class GptOssMLP(nn.Module):
    """Routed experts with clamped gate and up projections, and 1 added to up."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        # A softmax over the picked ones equals that over all, normalized.
        routing = Routing(top_k=config.num_experts_per_tok, normalize=True)
        self.router = Router(config.hidden_size, config.num_experts, routing, bias=True)
        self.experts = Experts(
            config.num_experts,
            config.hidden_size,
            config.intermediate_size,
            bias=True,
            gated=self._gated,
        )

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.experts(x_TD, *self.router(x_TD))
        return y_TD

    def _gated(self, gate_NI: Tensor, up_NI: Tensor) -> Tensor:
        gate_NI, up_NI = gate_NI.clamp(max=self.limit), up_NI.clamp(-self.limit, self.limit)
        return (up_NI + 1) * gate_NI * torch.sigmoid(self.alpha * gate_NI)


class GptOssForCausalLM(CausalLM):
    def __init__(self, config: GptOssConfig) -> None:
        hidden_size, eps = config.hidden_size, config.rms_norm_eps
        bias = config.attention_bias
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    hidden_size,
                    bias=bias,
                    output_bias=bias,
                ),
                GptOssMLP(config),
                hidden_size=hidden_size,
                eps=eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
