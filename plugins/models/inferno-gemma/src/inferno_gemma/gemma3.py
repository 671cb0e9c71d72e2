"""Gemma 3, text: Gemma 2 with query and key norms, and a rotary base per layer type.

https://arxiv.org/abs/2503.19786; reference: transformers/models/gemma3. Suffixes: T packed tokens,
D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from inferno.configs import FULL, SLIDING
from inferno.nn import (
    CausalLM,
    Decoder,
    GatedMLP,
    RMSNorm,
    Rope,
    Rotation,
    SandwichDecoderLayer,
    SelfAttention,
)
from inferno.nn.batch import Batch
from inferno_gemma.config import Gemma3Config
from inferno_gemma.gemma2 import NORMS

Norm = partial(RMSNorm, offset=1.0)


class Gemma3Rope(nn.Module):
    """One rotary embedding per layer type."""

    def __init__(self, config: Gemma3Config) -> None:
        super().__init__()
        positions = config.max_position_embeddings
        self.full = Rope(config.head_dim, config.rope, max_position_embeddings=positions)
        self.sliding = Rope(config.head_dim, config.local_rope, max_position_embeddings=positions)

    def forward(self, batch: Batch) -> Mapping[str, Rotation]:
        return {FULL: self.full(batch), SLIDING: self.sliding(batch)}


class Gemma3Attention(SelfAttention):
    """Attention with its layer type's rotary embedding."""

    def __init__(self, config: Gemma3Config, layer_id: int) -> None:
        super().__init__(
            layer_id,
            config.attention_spec(layer_id),
            config.hidden_size,
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            head_norm=partial(Norm, config.head_dim, config.rms_norm_eps),
        )
        self.layer_type = config.layer_types[layer_id]

    def forward(self, x_TD: Tensor, rotation: Mapping[str, Rotation], batch: Batch) -> Tensor:  # type: ignore[override]
        return super().forward(x_TD, rotation[self.layer_type], batch)


class Gemma3ForCausalLM(CausalLM):
    def __init__(self, config: Gemma3Config) -> None:
        layers = (
            SandwichDecoderLayer(
                Gemma3Attention(config, layer_id),
                GatedMLP(config.hidden_size, config.intermediate_size, activation="gelu_tanh"),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
                norms=NORMS,
                norm=Norm,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        decoder = Decoder.of(
            config,
            layers,
            rope=Gemma3Rope(config),
            norm=Norm,
            embedding_scale=config.hidden_size**0.5,
        )
        super().__init__(
            decoder, tied=config.tie_word_embeddings, soft_cap=config.final_logit_softcapping
        )
