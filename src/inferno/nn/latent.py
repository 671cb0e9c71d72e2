"""Latent attention (MLA): all heads share one latent (arXiv:2405.04434).

A token's cache entry is its latent and one rotated key. The projection from latent to key is
absorbed into the query, and that from latent to value into the output: the same products in another
order.

Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, C head dim, N the part of it that
is not rotated, R the part that is, L latent, Q latent of queries, V head dim of values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from inferno.contracts import AttentionSpec, Indexed, Range, Shard
from inferno.nn.attention import Attention
from inferno.nn.batch import Batch
from inferno.nn.layer import Finalize, Layer
from inferno.nn.linear import Linear, MergedLinear
from inferno.nn.norm import RMSNorm
from inferno.nn.rope import NoRotation, Rotation
from inferno.ops.rows import row_products

LATENT_EPS = 1e-6
"""Epsilon of the norms within latent attention, independent of `rms_norm_eps`."""


class LatentAttention(Layer):
    def __init__(
        self,
        layer_id: int,
        spec: AttentionSpec,
        *,
        hidden_size: int,
        nope: int,
        rotated: int,
        value_dim: int,
        q_lora_rank: int = 0,
        indexer: nn.Module | None = None,
    ) -> None:
        """A head of the queries has `nope` elements that are not rotated, then `rotated` ones;
        without a `q_lora_rank` they have no latent. `indexer` maps the inputs, the latents of the
        queries, the rotation and the batch to what the layer's index is given."""
        super().__init__()
        assert spec.latent_dim is not None, "the spec is that of latent attention"
        self.num_heads, self.latent = spec.num_heads, spec.latent_dim
        self.nope, self.rotated, self.q_lora_rank = nope, rotated, q_lora_rank
        query_X, latent_C = self.num_heads * (nope + rotated), self.latent + rotated
        if q_lora_rank:
            self.down = MergedLinear(hidden_size, q_a_proj=q_lora_rank, kv_a_proj_with_mqa=latent_C)
            self.q_a_layernorm = RMSNorm(q_lora_rank, LATENT_EPS)
            self.q_b_proj = Linear(q_lora_rank, query_X)
        else:
            self.down = MergedLinear(hidden_size, q_proj=query_X, kv_a_proj_with_mqa=latent_C)
        self.kv_a_layernorm = RMSNorm(self.latent, LATENT_EPS)
        self.kv_b_proj = Linear(self.latent, self.num_heads * (nope + value_dim))
        self.key_HNL: Tensor  # made by finalize
        self.value_HLV: Tensor
        self.attention = Attention(layer_id, spec)
        self.multiply: Callable[[Tensor, Tensor], Tensor] = torch.bmm
        self.indexer = indexer
        self.o_proj = Linear(self.num_heads * value_dim, hidden_size)

    def divide(self, shard: Shard) -> None:
        """Keep some of the heads. Their latent, and so the cache, is whole."""
        if not shard.attention:
            return
        (start, stop), _ = shard.heads(self.attention.spec)

        def of(size: int) -> Range:
            each = size // self.num_heads
            return start * each, stop * each

        query = of(self.num_heads * (self.nope + self.rotated))
        if self.q_lora_rank:
            self.q_b_proj.keep_rows(query)
        else:
            self.down.keep_rows(q_proj=[query])
        self.kv_b_proj.keep_rows(of(self.kv_b_proj.weight.shape[0]))
        self.o_proj.keep_columns(of(self.o_proj.weight.shape[1]), shard)
        self.attention.spec, self.num_heads = shard.local(self.attention.spec), stop - start

    def finalize(self, to: Finalize) -> None:
        """Unpack the absorbed projections, latent to key and latent to value of each head, and drop
        the stored matrix."""
        weight, device = self.kv_b_proj.weight, self.kv_a_layernorm.weight.device
        rows_XL = weight.rows(torch.arange(weight.shape[0], device=device))
        both_HCL = rows_XL.view(self.num_heads, -1, self.latent)
        key_HNL, value_HVL = both_HCL[:, : self.nope], both_HCL[:, self.nope :]
        if to.batch_invariant:
            self.multiply = _by_rows
        del self.kv_b_proj
        self.register_buffer("key_HNL", key_HNL, persistent=False)
        self.register_buffer("value_HLV", value_HVL.transpose(1, 2), persistent=False)

    def forward(self, x_TD: Tensor, rotate: Rotation | NoRotation, batch: Batch) -> Tensor:
        q_TX, latent_TC = self.down(x_TD)
        indexed: Indexed | None = None
        if self.q_lora_rank:
            latent_TQ = self.q_a_layernorm(q_TX)
            q_TX = self.q_b_proj(latent_TQ)
            if self.indexer is not None:
                indexed = self.indexer(x_TD, latent_TQ, rotate, batch)
        q_THN, q_THR = q_TX.unflatten(-1, (self.num_heads, -1)).split(
            [self.nope, self.rotated], dim=-1
        )
        latent_TL, k_TR = latent_TC.split([self.latent, self.rotated], dim=-1)
        q_HTL = self.multiply(q_THN.transpose(0, 1), self.key_HNL)
        q_THC = torch.cat([q_HTL.transpose(0, 1), rotate(q_THR)], -1)
        k_TC = torch.cat([self.kv_a_layernorm(latent_TL), rotate(k_TR[:, None])[:, 0]], -1)
        out_TX = self.attention(q_THC.flatten(1), k_TC, None, batch, indexed=indexed)
        out_HTV = self.multiply(
            out_TX.unflatten(-1, (self.num_heads, -1)).transpose(0, 1), self.value_HLV
        )
        y_TD: Tensor = self.o_proj(out_HTV.transpose(0, 1).flatten(1))
        return y_TD


def _by_rows(x_HTC: Tensor, weight_HCO: Tensor) -> Tensor:
    """Return x · weight; the bits of a row do not depend on the other rows of x."""
    y_HTO = row_products(x_HTC.float(), weight_HCO.float().transpose(1, 2))
    return y_HTO.to(x_HTC.dtype)
