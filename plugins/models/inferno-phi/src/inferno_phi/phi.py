"""Phi-1, 1.5 and 2: parallel attention and MLP, biases everywhere, a part of each head rotated.

https://arxiv.org/abs/2309.05463; reference: transformers/models/phi.
Suffixes: T packed tokens, D hidden.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Shard
from inferno.nn import (
    CausalLM,
    Decoder,
    LayerNorm,
    Linear,
    ParallelDecoderLayer,
    SelfAttention,
)
from inferno_phi.config import PhiConfig


class PhiMLP(nn.Module):
    def __init__(self, config: PhiConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size, bias=True)

    def divide(self, shard: Shard) -> None:
        """Keep a part of the inner width."""
        if shard.divides(size := self.fc2.weight.shape[1]):
            self.fc1.keep_rows(shard.share(size))
            self.fc2.keep_columns(shard.share(size), shard)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.fc2(F.gelu(self.fc1(x_TD), approximate="tanh"))
        return y_TD


class PhiForCausalLM(CausalLM):
    def __init__(self, config: PhiConfig) -> None:
        layers = (
            ParallelDecoderLayer(
                _attention(config, layer_id),
                PhiMLP(config),
                hidden_size=config.hidden_size,
                eps=config.layer_norm_eps,
                norm=LayerNorm,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        decoder = Decoder.of(
            config, layers, eps=config.layer_norm_eps, norm=LayerNorm, norm_name="final_layernorm"
        )
        super().__init__(decoder, tied=False, bias=True)


def _attention(config: PhiConfig, layer_id: int) -> SelfAttention:
    spec, eps = config.attention_spec(layer_id), config.layer_norm_eps
    norms = LayerNorm(spec.head_dim, eps), LayerNorm(spec.head_dim, eps)
    return SelfAttention(
        layer_id,
        spec,
        config.hidden_size,
        bias=True,
        output_bias=True,
        output="dense",
        layernorms=norms if config.qk_layernorm else None,
    )
