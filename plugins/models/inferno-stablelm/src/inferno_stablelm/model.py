"""StableLM: LayerNorms, a quarter of each head rotated; the 12B has parallel blocks and a norm per
head.

https://arxiv.org/abs/2402.17834; reference: transformers/models/stablelm.
Suffixes: T packed tokens, H heads, C head dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    Finalize,
    GatedMLP,
    Layer,
    LayerNorm,
    ParallelDecoderLayer,
    SelfAttention,
)
from inferno_stablelm.config import StableLmConfig


class HeadNorms(Layer):
    """One LayerNorm per head, stored under its index: `norms.3.weight`."""

    weight_HC: Tensor

    def __init__(self, num_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.norms = nn.ModuleList(LayerNorm(head_dim, eps, bias=False) for _ in range(num_heads))
        self.kept = slice(None)

    def keep_heads(self, first: int, stop: int) -> None:
        """Keep those of a rank's heads."""
        self.kept = slice(first, stop)

    def finalize(self, to: Finalize) -> None:
        """Stack the heads' weights into one tensor."""
        weights = [norm.weight for norm in self.norms][self.kept]
        self.register_buffer("weight_HC", torch.stack(weights))  # type: ignore[arg-type]
        self.norms = nn.ModuleList()

    def forward(self, x_THC: Tensor) -> Tensor:
        return F.layer_norm(x_THC, x_THC.shape[-1:], eps=self.eps) * self.weight_HC


def _attention(config: StableLmConfig, layer_id: int) -> SelfAttention:
    spec, eps = config.attention_spec(layer_id), config.layer_norm_eps
    norms = [HeadNorms(heads, spec.head_dim, eps) for heads in (spec.num_heads, spec.num_kv_heads)]
    return SelfAttention(
        layer_id,
        spec,
        config.hidden_size,
        bias=config.use_qkv_bias,
        layernorms=(norms[0], norms[1]) if config.qk_layernorm else None,
    )


class StableLmForCausalLM(CausalLM):
    def __init__(self, config: StableLmConfig) -> None:
        layer = ParallelDecoderLayer if config.use_parallel_residual else DecoderLayer
        layers = (
            layer(
                _attention(config, layer_id),
                GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.layer_norm_eps,
                norm=LayerNorm,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        decoder = Decoder.of(config, layers, eps=config.layer_norm_eps, norm=LayerNorm)
        super().__init__(decoder, tied=config.tie_word_embeddings)
