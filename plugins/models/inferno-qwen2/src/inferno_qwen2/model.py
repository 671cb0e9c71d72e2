"""Qwen2: Llama with biases on q, k and v, and a sliding window in some layers of some models.

https://arxiv.org/abs/2407.10671, https://arxiv.org/abs/2412.15115; reference:
transformers/models/qwen2.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, SelfAttention
from inferno_qwen2.config import Qwen2Config


class Qwen2ForCausalLM(CausalLM):
    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(Decoder.of(config, layers(config)), tied=config.tie_word_embeddings)


def layers(config: Qwen2Config) -> Iterator[DecoderLayer]:
    """Return the layers of the decoder."""
    for layer_id in range(config.num_hidden_layers):
        yield DecoderLayer(
            SelfAttention(layer_id, config.attention_spec(layer_id), config.hidden_size, bias=True),
            GatedMLP(config.hidden_size, config.intermediate_size),
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
        )
