"""Gemma 3, text: Gemma 2 with query and key norms, and a rotary base per layer type.

https://arxiv.org/abs/2503.19786; reference: transformers/models/gemma3.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from inferno.configs import FULL, SLIDING
from inferno.nn import (
    CausalLM,
    Decoder,
    GatedMLP,
    RMSNorm,
    RopeByKind,
    SandwichDecoderLayer,
    SelfAttention,
)
from inferno_gemma.config import Gemma3Config
from inferno_gemma.gemma2 import NORMS

Norm = partial(RMSNorm, offset=1.0)


def layers(config: Gemma3Config) -> Iterator[SandwichDecoderLayer]:
    """Make the decoder's layers."""
    for layer_id in range(config.num_hidden_layers):
        yield SandwichDecoderLayer(
            SelfAttention(
                layer_id,
                config.attention_spec(layer_id),
                config.hidden_size,
                bias=config.attention_bias,
                output_bias=config.attention_bias,
                head_norm=partial(Norm, config.head_dim, config.rms_norm_eps),
                kind=config.layer_types[layer_id],
            ),
            GatedMLP(config.hidden_size, config.intermediate_size, activation="gelu_tanh"),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
            norms=NORMS,
            norm=Norm,
        )


class Gemma3ForCausalLM(CausalLM):
    def __init__(self, config: Gemma3Config) -> None:
        decoder = Decoder.of(
            config,
            layers(config),
            rope=RopeByKind.of(config, {FULL: config.rope, SLIDING: config.local_rope}),
            norm=Norm,
            embedding_scale=config.hidden_size**0.5,
        )
        super().__init__(
            decoder, tied=config.tie_word_embeddings, soft_cap=config.final_logit_softcapping
        )
