"""Qwen3: grouped-query attention with a norm on every query and key head.

https://arxiv.org/abs/2505.09388; reference: transformers/models/qwen3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, RMSNorm, SelfAttention
from inferno_qwen3.config import Qwen3Config


class Qwen3ForCausalLM(CausalLM):
    def __init__(self, config: Qwen3Config) -> None:
        layers = (layer(config, layer_id) for layer_id in range(config.num_hidden_layers))
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)


def layer(
    config: Qwen3Config, layer_id: int, kind: Callable[..., DecoderLayer] = DecoderLayer
) -> DecoderLayer:
    """Return a layer of some kind, with the config's sizes."""
    return kind(
        SelfAttention(
            layer_id,
            config.attention_spec(layer_id),
            config.hidden_size,
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            head_norm=partial(RMSNorm, config.head_dim, config.rms_norm_eps),
        ),
        GatedMLP(config.hidden_size, config.intermediate_size),
        hidden_size=config.hidden_size,
        eps=config.rms_norm_eps,
    )
