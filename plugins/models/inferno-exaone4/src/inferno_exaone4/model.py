"""EXAONE 4: a norm for each query and key head, norms of what attention and MLP add; in the 32B,
windows in three layers of four, and no positions in the others.

https://arxiv.org/abs/2507.11407; reference: transformers/models/exaone4.
"""

from __future__ import annotations

from functools import partial

from inferno.nn import (
    CausalLM,
    Decoder,
    GatedMLP,
    PostNormDecoderLayer,
    RMSNorm,
    RopeByKind,
    SelfAttention,
)
from inferno_exaone4.config import Exaone4Config

_ROTATED, _UNROTATED = "rotated", "unrotated"


class Exaone4ForCausalLM(CausalLM):
    def __init__(self, config: Exaone4Config) -> None:
        layers = (
            PostNormDecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    head_norm=partial(RMSNorm, config.head_dim, config.rms_norm_eps),
                    kind=_ROTATED if config.rotates(layer_id) else _UNROTATED,
                ),
                GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        rope = RopeByKind.of(config, {_ROTATED: config.rope, _UNROTATED: None})
        super().__init__(Decoder.of(config, layers, rope=rope), tied=config.tie_word_embeddings)
