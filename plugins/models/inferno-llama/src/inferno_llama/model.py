"""Llama: the plain decoder that many model families use.

https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783; reference:
transformers/models/llama.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, SelfAttention
from inferno_llama.config import LlamaConfig


class LlamaForCausalLM(CausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(Decoder.of(config, layers(config)), tied=config.tie_word_embeddings)


def layers(config: LlamaConfig) -> Iterator[DecoderLayer]:
    """Return the layers of the decoder."""
    output_bias = config.attention_bias if config.output_bias is None else config.output_bias
    for layer_id in range(config.num_hidden_layers):
        yield DecoderLayer(
            SelfAttention(
                layer_id,
                config.attention_spec(layer_id),
                config.hidden_size,
                bias=config.attention_bias,
                output_bias=output_bias,
            ),
            GatedMLP(
                config.hidden_size,
                config.intermediate_size,
                bias=config.mlp_bias,
                down_bias=config.down_bias,
            ),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
        )
