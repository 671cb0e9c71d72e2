"""StableLM: LayerNorms, heads of which only a quarter turns; the 12B: parallel blocks, a norm for
each head.

https://arxiv.org/abs/2402.17834; reference: transformers/models/stablelm.
Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, C head dim.
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
    Rope,
    Rotation,
    SelfAttention,
)
from inferno.nn.batch import Batch
from inferno_stablelm.config import StableLmConfig


class HeadNorms(Layer):
    """A LayerNorm for each head, stored under its number: `norms.3.weight`."""

    weight_HC: Tensor

    def __init__(self, num_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.norms = nn.ModuleList(LayerNorm(head_dim, eps, bias=False) for _ in range(num_heads))

    def finalize(self, to: Finalize) -> None:
        """One tensor instead of one for each head."""
        self.register_buffer("weight_HC", torch.stack([norm.weight for norm in self.norms]))  # type: ignore[misc]
        self.norms = nn.ModuleList()

    def forward(self, x_THC: Tensor) -> Tensor:
        return F.layer_norm(x_THC, x_THC.shape[-1:], eps=self.eps) * self.weight_HC


class StableLmAttention(SelfAttention):
    def __init__(self, config: StableLmConfig, layer_id: int) -> None:
        spec = config.attention_spec(layer_id)
        super().__init__(layer_id, spec, config.hidden_size, bias=config.use_qkv_bias)
        normed, eps = config.qk_layernorm, config.layer_norm_eps
        self.q_layernorm = (
            HeadNorms(spec.num_heads, spec.head_dim, eps) if normed else nn.Identity()
        )
        self.k_layernorm = (
            HeadNorms(spec.num_kv_heads, spec.head_dim, eps) if normed else nn.Identity()
        )

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        q_TX, k_TX, v_TX = self.qkv(x_TD)
        q_THC = rotate(self.q_layernorm(q_TX.unflatten(-1, (-1, self.head_dim))))
        k_THC = rotate(self.k_layernorm(k_TX.unflatten(-1, (-1, self.head_dim))))
        y_TD: Tensor = self.o_proj(self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch))
        return y_TD


class StableLmForCausalLM(CausalLM):
    def __init__(self, config: StableLmConfig) -> None:
        hidden_size, eps = config.hidden_size, config.layer_norm_eps
        layer = ParallelDecoderLayer if config.use_parallel_residual else DecoderLayer
        layers = (
            layer(
                StableLmAttention(config, layer_id),
                GatedMLP(hidden_size, config.intermediate_size),
                hidden_size=hidden_size,
                eps=eps,
                norm=LayerNorm,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        rope = Rope(
            config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings
        )
        decoder = Decoder(
            layers,
            rope,
            vocab_size=config.vocab_size,
            hidden_size=hidden_size,
            eps=eps,
            norm=LayerNorm,
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
