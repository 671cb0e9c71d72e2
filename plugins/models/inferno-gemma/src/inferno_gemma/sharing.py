"""What Gemma 3n and 4 share: each layer is given an input of its own, values are normalized too,
and the last layers have queries alone, with the keys and values of a layer before them.

Those are in the cache once. A layer that reads them calls the attention of the layer that has them,
with the same keys and values of this step, which are stored a second time where they are.

Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, K key/value heads, C head dim,
L layers, P width of a layer's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor, nn

from inferno.contracts import AttentionSpec, LayerSpan, Shard
from inferno.nn import (
    Absent,
    Attention,
    Decoder,
    Edges,
    Embedding,
    Finalize,
    Layer,
    Linear,
    MergedLinear,
    RMSNorm,
    Rotation,
    SelfAttention,
    present,
)
from inferno.nn.batch import Batch
from inferno.nn.mlp import gated
from inferno.ops import reference as ops
from inferno_gemma.sharing_config import SharingConfig

MakeAttention = Callable[[int, AttentionSpec], Attention]
"""(layer id, spec) -> the layer's attention over the cache."""


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
        attention: MakeAttention = Attention,
    ) -> None:
        """Without `values`, these are the projected keys. `attention` makes what attends."""
        norm = partial(RMSNorm, spec.head_dim, eps)
        super().__init__(
            layer_id, spec, hidden_size, bias=bias, output_bias=bias, head_norm=norm, kind=kind
        )
        self.attention = attention(layer_id, spec)
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


def attentions(
    config: SharingConfig, attention: MakeAttention = Attention
) -> Iterator[OwnKeys | OthersKeys]:
    """Make the attention of each layer, with what attends."""
    made: list[OwnKeys] = []
    eps, bias = config.rms_norm_eps, config.attention_bias
    for layer, kind in enumerate(config.layer_types):
        if layer >= config.num_own:
            yield OthersKeys(made[config.source(layer)], config.hidden_size, eps=eps, bias=bias)
            continue
        made.append(
            OwnKeys(
                layer,
                config.attention_spec(layer),
                config.hidden_size,
                eps=eps,
                kind=kind,
                bias=bias,
                values=config.has_values(layer),
                attention=attention,
            )
        )
        yield made[-1]


def gelu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) · up, with the tanh approximation."""
    return gated(ops.TORCH, "gelu_tanh", gate, up)


class SharingDecoder(Decoder):
    """A decoder that gives each layer an input of its own: half is looked up by the token, half is
    projected from its embedding."""

    def __init__(self, *args: Any, width: int, known: int, **more: Any) -> None:
        """`width` is that of a layer's input, 0 without any; tokens up to `known` have one."""
        super().__init__(*args, **more)
        self.width, self.known, self.hidden_size = width, known, more["hidden_size"]
        if width:
            hidden, size = self.hidden_size, len(self.layers) * width
            self.embed_tokens_per_layer: nn.Module = Embedding(known, size)
            self.per_layer_model_projection: nn.Module = Linear(hidden, size)
            self.per_layer_projection_norm: nn.Module = RMSNorm(width, more["eps"])

    def inputs(self, x_TD: Tensor, token_ids_T: Tensor) -> Tensor | None:
        """Return the layers' inputs, (T, L, P), from the embeddings and ids of a step's tokens."""
        if not self.width:
            return None
        known_T = token_ids_T.masked_fill(token_ids_T >= self.known, 0)
        looked_up_TLP = self.embed_tokens_per_layer(known_T).unflatten(-1, (-1, self.width))
        scale = looked_up_TLP.new_full((), self.width**0.5)
        h_TLP = (self.per_layer_model_projection(x_TD) * x_TD.shape[-1] ** -0.5).unflatten(
            -1, (-1, self.width)
        )
        both_TLP: Tensor = self.per_layer_projection_norm(h_TLP) + looked_up_TLP * scale
        return both_TLP * math.sqrt(0.5)

    def keep_layers(self, span: LayerSpan, edges: Edges) -> None:
        super().keep_layers(span, edges)
        if self.width and not span.begins:
            self.embed_tokens_per_layer, self.per_layer_model_projection = Absent(), Absent()
            self.per_layer_projection_norm = Absent()

    def spread(self, x_TD: Tensor) -> Tensor:
        """Return what the first layer is given of the embeddings."""
        return x_TD

    def gather(self, x_TD: Tensor) -> Tensor:
        """Return the state of each token from what the last layer returns."""
        return x_TD

    def begin(self, token_ids_T: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what the first layer is given, and the inputs of all layers: of the embeddings, or
        of what the pipeline stage before has passed on."""
        if self.edges.received_ND is None:
            embedded_TD = self.embed(token_ids_T)
            return self.spread(embedded_TD), self.inputs(embedded_TD, token_ids_T)
        received_TN = self.edges.received_ND[: len(token_ids_T)]
        size = received_TN.shape[1] - len(self.layers) * self.width
        x, inputs_TX = received_TN[:, :size], received_TN[:, size:]
        x = x if size == self.hidden_size else x.unflatten(1, (-1, self.hidden_size))
        return x, inputs_TX.unflatten(1, (-1, self.width)) if self.width else None

    def forward(self, batch: Batch) -> Tensor:
        x, inputs_TLP = self.begin(batch.token_ids_T)
        given, delta = Given(self.rope(batch), inputs_TLP), None
        for layer in present(self.layers):
            x, delta = layer(x, delta, given, batch)
        if (passed_ND := self.edges.passed_ND) is not None:
            inputs = () if inputs_TLP is None else (inputs_TLP.flatten(1),)
            return passed_ND[: len(x)].copy_(torch.cat([x.flatten(1), *inputs], 1))
        y_TD: Tensor = self.get_submodule(self.norm_name)(self.gather(x))
        return y_TD
