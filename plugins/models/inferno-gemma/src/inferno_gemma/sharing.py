"""Attention of Gemma 3n and 4: values are normalized too, and the last layers have queries alone,
with the keys and values of a layer before them.

Those are in the cache once. A layer that reads them calls the attention of the layer that has them,
with the same keys and values of this step, which are stored a second time where they are.

Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, K key/value heads, C head dim,
L layers, P width of a layer's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from attrs import field, frozen
from torch import Tensor, nn

from inferno.contracts import AttentionSpec, Shard
from inferno.nn import (
    Attention,
    Finalize,
    Layer,
    Linear,
    MergedLinear,
    RMSNorm,
    Rotation,
    SelfAttention,
)
from inferno.nn.batch import Batch
from inferno.ops import reference as ops


@frozen(eq=False)
class Given:
    """What layers are given of a step besides the states."""

    rotations: Mapping[str, Rotation]
    """By the layer's kind."""
    inputs_TLP: Tensor | None = None
    kept: dict[str, tuple[Tensor, Tensor]] = field(factory=dict)
    """Keys and values of this step's tokens, of the last layer of each kind that has some."""


class OwnKeys(SelfAttention, Layer):
    """Attention whose queries, keys and values are normalized, values without a weight."""

    def __init__(
        self,
        layer_id: int,
        spec: AttentionSpec,
        hidden_size: int,
        *,
        eps: float,
        kind: str,
        bias: bool = False,
        values: bool = True,
    ) -> None:
        """Without `values`, these are the projected keys."""
        norm = partial(RMSNorm, spec.head_dim, eps)
        super().__init__(
            layer_id, spec, hidden_size, bias=bias, output_bias=bias, head_norm=norm, kind=kind
        )
        if not values:
            sizes = dict(zip(("q_proj", "k_proj"), self.sizes, strict=False))
            self.qkv = MergedLinear(hidden_size, bias=bias, **sizes)
        self.eps, self.ops, self.ones_C = eps, ops.TORCH, torch.empty(0)

    def finalize(self, to: Finalize) -> None:
        assert self.k_norm is not None, "it was made with head_norm"
        self.ops, self.ones_C = to.ops, torch.ones_like(self.k_norm.weight)

    def forward(self, x_TD: Tensor, given: Given, batch: Batch) -> Tensor:  # type: ignore[override]
        rotate = given.rotations[self.kind]
        q_TX, k_TX, *values = self.qkv(x_TD)
        q_THC, k_TKC, v_TKC = (
            x_TX.unflatten(-1, (-1, self.head_dim)) for x_TX in (q_TX, k_TX, *(values or [k_TX]))
        )
        v_TX = self.ops.rms_norm(v_TKC, self.ones_C, self.eps).flatten(1)
        q_TX, k_TX = rotate(q_THC, self.q_norm).flatten(1), rotate(k_TKC, self.k_norm).flatten(1)
        given.kept[self.kind] = k_TX, v_TX
        y_TD: Tensor = self.get_submodule(self.output)(self.attention(q_TX, k_TX, v_TX, batch))
        return y_TD


class OthersKeys(nn.Module):
    """Attention with queries of its own to keys and values of another layer."""

    def __init__(
        self, source: OwnKeys, hidden_size: int, *, eps: float, bias: bool = False
    ) -> None:
        super().__init__()
        spec = self.spec = source.attention.spec
        self._source = [source.attention]  # no module of this layer
        self.kind, self.head_dim = source.kind, spec.head_dim
        heads_X = spec.num_heads * spec.head_dim
        self.q_proj = Linear(hidden_size, heads_X, bias=bias)
        self.q_norm = RMSNorm(spec.head_dim, eps)
        self.o_proj = Linear(heads_X, hidden_size, bias=bias)
        source.readers.append(self.q_norm)

    @property
    def attention(self) -> Attention:
        """That of the layer which has the keys and values."""
        return self._source[0]

    def divide(self, shard: Shard) -> None:
        """Keep some of the heads, those that read what the other layer keeps."""
        if shard.attention:
            (start, stop), _ = shard.heads(self.spec)
            rows = (start * self.head_dim, stop * self.head_dim)
            self.q_proj.keep_rows(rows)
            self.o_proj.keep_columns(rows, shard)

    def forward(self, x_TD: Tensor, given: Given, batch: Batch) -> Tensor:
        q_THC = self.q_proj(x_TD).unflatten(-1, (-1, self.head_dim))
        q_TX = given.rotations[self.kind](q_THC, self.q_norm).flatten(1)
        y_TD: Tensor = self.o_proj(self.attention(q_TX, *given.kept[self.kind], batch))
        return y_TD
