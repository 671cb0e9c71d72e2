"""SigLIP's encoder of images: layers of attention over patches. Each family makes embeddings of
these in its way.

https://arxiv.org/abs/2303.15343; reference: transformers/models/siglip and siglip2.

Suffixes: P patches of an image, row by row, W numbers of a patch, D the encoder's hidden size,
H heads, C head dim.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from inferno.configs import SiglipConfig
from inferno.nn.layer import Layer
from inferno.nn.linear import Linear
from inferno.nn.norm import LayerNorm
from inferno.nn.vision import VisionMLP


class SiglipTower(nn.Module):
    """The whole of it. `embeddings` makes (P, D) of (P, W) and of what else the tower is given."""

    def __init__(self, config: SiglipConfig, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(
            _SiglipLayer(config) for _ in range(config.num_hidden_layers)
        )
        self.post_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, pixels_PW: Tensor, *more: Any) -> Tensor:
        """Return the states of the patches, (P, D)."""
        x_PD = self.embeddings(pixels_PW, *more)
        modules: nn.ModuleList = self.encoder.layers  # type: ignore[assignment]
        for layer in modules:
            x_PD = layer(x_PD)
        y_PD: Tensor = self.post_layernorm(x_PD)
        return y_PD


class _SiglipLayer(nn.Module):
    def __init__(self, config: SiglipConfig) -> None:
        super().__init__()
        self.layer_norm1 = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = _SiglipAttention(config)
        self.layer_norm2 = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = VisionMLP(config.hidden_size, config.intermediate_size, approximate="tanh")

    def forward(self, x_PD: Tensor) -> Tensor:
        x_PD = x_PD + self.self_attn(self.layer_norm1(x_PD))
        y_PD: Tensor = x_PD + self.mlp(self.layer_norm2(x_PD))
        return y_PD


class _SiglipAttention(Layer):
    """Attention among all patches, in both directions. Its matrices are not called as those that
    ranks divide: each holds it whole."""

    def __init__(self, config: SiglipConfig) -> None:
        super().__init__()
        self.num_heads, size = config.num_attention_heads, config.hidden_size
        self.q, self.k, self.v, self.out = (Linear(size, size, bias=True) for _ in range(4))

    def forward(self, x_PD: Tensor) -> Tensor:
        q, k, v = (
            product(x_PD).unflatten(1, (self.num_heads, -1)).transpose(0, 1)[None]
            for product in (self.q, self.k, self.v)
        )
        y_HPC = F.scaled_dot_product_attention(q, k, v)[0]
        y_PD: Tensor = self.out(y_HPC.transpose(0, 1).flatten(1))
        return y_PD
