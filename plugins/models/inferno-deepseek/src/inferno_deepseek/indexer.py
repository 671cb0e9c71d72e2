"""The lightning indexer (DeepSeek-V3.2, arXiv:2512.02556): it finds the positions that a query of
latent attention attends to (`contracts.IndexSpec`).

Published code rotates its queries and keys by a Hadamard matrix too, so that FP8 holds them better.
That changes no product, and here they have the compute type.

Suffixes: T packed tokens, D hidden, Q latent of queries, J heads, C head dim.
"""

from __future__ import annotations

from attrs import evolve
from torch import Tensor, nn

from inferno.contracts import Indexed, IndexSpec
from inferno.nn import LATENT_EPS, LayerNorm, Linear, Rotation
from inferno.nn.batch import Batch
from inferno_deepseek.indexed_config import IndexedConfig


class Indexer(nn.Module):
    """Its queries come from the latent of attention's, its keys from the hidden state. The first
    elements of both are rotated, in halves unless `indexer_rope_interleave`."""

    def __init__(self, config: IndexedConfig, spec: IndexSpec) -> None:
        super().__init__()
        self.spec, self.interleaved = spec, config.indexer_rope_interleave
        self.wq_b = Linear(config.q_lora_rank, spec.num_heads * spec.head_dim)
        self.wk = Linear(config.hidden_size, spec.head_dim)
        self.k_norm = LayerNorm(spec.head_dim, LATENT_EPS)
        self.weights_proj = Linear(config.hidden_size, spec.num_heads)
        self.scale = (spec.num_heads * spec.head_dim) ** -0.5

    def forward(self, x_TD: Tensor, latent_TQ: Tensor, rotate: Rotation, batch: Batch) -> Indexed:
        rotate = evolve(rotate, interleaved=self.interleaved)
        k_TC = rotate(self.k_norm(self.wk(x_TD))[:, None])[:, 0]
        if max(batch.context_lens) <= self.spec.top_k:
            return Indexed(k_TC)
        q_TJC = self.wq_b(latent_TQ).unflatten(-1, (self.spec.num_heads, -1))
        return Indexed(k_TC, rotate(q_TJC), self.weights_proj(x_TD).float() * self.scale)
