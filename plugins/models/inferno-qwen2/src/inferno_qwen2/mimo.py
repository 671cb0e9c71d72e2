"""MiMo (arXiv:2505.07608): Qwen2, and a layer that predicts further tokens.

Suffixes: T packed tokens, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inferno.nn import GatedMLP, MTPLayer, MTPLayers, SelfAttention
from inferno_qwen2.mimo_config import MiMoConfig
from inferno_qwen2.model import Qwen2ForCausalLM


class MiMoLayer(MTPLayer):
    """Its projection reads the hidden state first, then the embedding."""

    def projection_input(self, x_TD: Tensor, embedded_TD: Tensor) -> Tensor:
        return torch.cat([self.hnorm(x_TD), self.enorm(embedded_TD)], dim=-1)


class MiMoLayers(MTPLayers):
    """The layers, stored under a name of their own."""

    def __init__(self, config: MiMoConfig, model: Qwen2ForCausalLM) -> None:
        size, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        layers = [
            MiMoLayer(
                SelfAttention(config.num_hidden_layers + i, spec, size, bias=True),
                GatedMLP(size, inner),
                hidden_size=size,
                eps=eps,
            )
            for i, spec in enumerate(config.mtp_specs())
        ]
        super().__init__(model, layers)
        self.model = nn.ModuleDict({"mtp_layers": nn.ModuleList(layers)})
