"""Gemma 1, 2 and 3, text: norms by 1 + w, scaled embeddings, GeGLU; from 2 on norms on both sides,
from 3 on two rotary bases.

https://arxiv.org/abs/2403.08295, https://arxiv.org/abs/2408.00118,
https://arxiv.org/abs/2503.19786; reference: transformers/models/gemma, gemma2, gemma3. Suffixes: T
packed tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from inferno.configs import FULL, SLIDING
from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    RMSNorm,
    Rope,
    Rotation,
    SandwichDecoderLayer,
    SelfAttention,
)
from inferno.nn.batch import Batch
from inferno_gemma.config import GemmaConfig

Norm = partial(RMSNorm, offset=1.0)
_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


class GemmaRope(nn.Module):
    """A rotation for each type of layers; one for both, where they turn alike (before Gemma 3)."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        rope = partial(
            Rope, config.head_dim, max_position_embeddings=config.max_position_embeddings
        )
        self.full = rope(config.rope)
        self.sliding = self.full if config.local_rope == config.rope else rope(config.local_rope)

    def forward(self, batch: Batch) -> Mapping[str, Rotation]:
        full = self.full(batch)
        return {FULL: full, SLIDING: full if self.sliding is self.full else self.sliding(batch)}


class GemmaAttention(SelfAttention):
    """Turned as its type of layers is."""

    def __init__(self, layer_type: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.layer_type = layer_type

    def forward(self, x_TD: Tensor, rotation: Mapping[str, Rotation], batch: Batch) -> Tensor:  # type: ignore[override]
        return super().forward(x_TD, rotation[self.layer_type], batch)


class GemmaForCausalLM(CausalLM):
    """Every generation's: the config says which parts it has."""

    def __init__(self, config: GemmaConfig) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        layer = partial(SandwichDecoderLayer, norms=_NORMS) if config.sandwich else DecoderLayer
        head_norm = partial(Norm, config.head_dim, eps) if config.head_norms else None
        layers = (
            layer(
                GemmaAttention(
                    config.layer_types[i],
                    i,
                    config.attention_spec(i),
                    hidden,
                    bias=config.attention_bias,
                    output_bias=config.attention_bias,
                    head_norm=head_norm,
                ),
                GatedMLP(hidden, config.intermediate_size, activation="gelu_tanh"),
                hidden_size=hidden,
                eps=eps,
                norm=Norm,
            )
            for i in range(config.num_hidden_layers)
        )
        decoder = Decoder(
            layers,
            GemmaRope(config),
            vocab_size=config.vocab_size,
            hidden_size=hidden,
            eps=eps,
            norm=Norm,
            embedding_scale=hidden**0.5,
        )
        super().__init__(
            decoder, tied=config.tie_word_embeddings, soft_cap=config.final_logit_softcapping
        )
