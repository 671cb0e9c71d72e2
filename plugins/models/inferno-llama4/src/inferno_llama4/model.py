"""Llama 4: chunked attention in layers that rotate queries and keys, full attention in those that
do not, and in some or all layers a routed expert beside a shared one.

https://ai.meta.com/blog/llama-4-multimodal-intelligence/; reference: transformers/models/llama4.
Suffixes: T packed tokens, D hidden, H heads, C head dim.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attrs import field, frozen
from torch import Tensor, nn

from inferno.contracts import Shard
from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    Experts,
    Finalize,
    GatedMLP,
    Layer,
    NoRotation,
    RMSNorm,
    Rope,
    RopeByKind,
    Rotation,
    Router,
    Routing,
    SelfAttention,
    sum_once,
)
from inferno.nn.batch import Batch
from inferno.nn.constant_keys import Pairs
from inferno_llama4.config import Llama4Config

TURNED, STILL = "turned", "still"
"""Kinds of layers: whether they rotate queries and keys."""


@frozen(eq=False)
class Normalized(Rotation):
    """A rotation that then divides each head by its root mean square."""

    ones_C: Tensor = field(kw_only=True)
    eps: float = field(kw_only=True)

    def __call__(self, x_THC: Tensor, norm: RMSNorm | None = None) -> Tensor:
        return self.ops.rms_norm(super().__call__(x_THC, norm), self.ones_C, self.eps)


class NormalizingRope(Rope):
    """A `Rope` of pairs of adjacent elements, whose heads are normalized after they are rotated."""

    def __init__(self, config: Llama4Config) -> None:
        super().__init__(
            config.head_dim,
            config.rope,
            max_position_embeddings=config.max_position_embeddings,
            interleaved=True,
        )
        self.eps, self.normalizes = config.rms_norm_eps, config.use_qk_norm
        self.head_dim = config.head_dim

    def finalize(self, to: Finalize) -> None:
        super().finalize(to)
        self.ones_C = torch.ones(self.head_dim, device=self.inv_freq_E.device)

    def forward(self, batch: Batch) -> Rotation:
        plain = super().forward(batch)
        if not self.normalizes:
            return plain
        return Normalized(
            plain.cos_TE,
            plain.sin_TE,
            plain.ops,
            plain.interleaved,
            plain.lines_LN,
            ones_C=self.ones_C,
            eps=self.eps,
        )


class Temperature(nn.Module):
    """In the place of a `Rope`: heads stay where they are, and queries are multiplied by a factor
    that grows with their position in steps, so that attention stays sharp over long contexts
    (arXiv:2501.19399)."""

    def __init__(self, config: Llama4Config) -> None:
        super().__init__()
        self.length, self.factor = config.floor_scale, config.attn_scale
        self.tuned = config.attn_temperature_tuning

    def forward(self, batch: Batch) -> NoRotation:
        still = NoRotation()
        if self.tuned and max(batch.context_lens) >= self.length:
            steps_T = torch.floor((batch.positions_T.float() + 1.0) / self.length)
            still.query_scale_T11 = (torch.log1p(steps_T) * self.factor + 1.0)[:, None, None]
        return still


class Attention(SelfAttention):
    """Self-attention of one kind of layers."""

    def __init__(self, config: Llama4Config, layer_id: int) -> None:
        turned = config.rotates(layer_id)
        super().__init__(
            layer_id,
            config.attention_spec(layer_id),
            config.hidden_size,
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            kind=TURNED if turned else STILL,
        )
        self.normalizes = turned and config.use_qk_norm

    def fit_keys(self, pairs: Pairs, inputs_D: Tensor, *, integers: bool) -> bool:
        """As in the base class; but keys that are normalized after they are rotated stay as they
        are: a bias in them is scaled with each key, and cannot be taken out."""
        return not self.normalizes and super().fit_keys(pairs, inputs_D, integers=integers)


class Mixture(Layer):
    """shared_expert(x) + the sum of expert(score · x) over the best experts, where scores are the
    sigmoids of their logits."""

    def __init__(self, config: Llama4Config) -> None:
        super().__init__()
        hidden, inner, experts = (
            config.hidden_size,
            config.intermediate_size,
            config.num_local_experts,
        )
        routing = Routing(top_k=config.num_experts_per_tok, scoring="sigmoid")
        self.router = Router(hidden, experts, routing)
        self.experts = Experts(experts, hidden, inner, weighs_inputs=True)
        self.shared_expert = GatedMLP(hidden, inner)
        self.summed = False

    def divide(self, shard: Shard) -> None:
        """Sum once over the ranks, after both parts are added."""
        self.summed = sum_once(self.experts, self.shared_expert)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.shared_expert(x_TD) + self.experts(x_TD, *self.router(x_TD))
        return self.experts.ops.all_reduce(y_TD) if self.summed else y_TD


class Llama4ForCausalLM(CausalLM):
    def __init__(self, config: Llama4Config) -> None:
        decoder = Decoder.of(config, layers(config), rope=rope(config))
        super().__init__(decoder, tied=config.tie_word_embeddings)


def rope(config: Llama4Config) -> RopeByKind:
    """Build what layers of each kind are given of positions."""
    return RopeByKind({TURNED: NormalizingRope(config), STILL: Temperature(config)})


def layers(config: Llama4Config) -> Iterator[DecoderLayer]:
    """Build the decoder's layers."""
    for layer_id in range(config.num_hidden_layers):
        dense = not config.has_experts(layer_id)
        yield DecoderLayer(
            Attention(config, layer_id),
            GatedMLP(config.hidden_size, config.intermediate_size_mlp)
            if dense
            else Mixture(config),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
            mlp_name="feed_forward",
        )
