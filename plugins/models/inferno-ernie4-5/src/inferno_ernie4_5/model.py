"""ERNIE 4.5, dense: Llama with heads rotated in adjacent pairs.

https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf; reference:
transformers/models/ernie4_5.
"""

from __future__ import annotations

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, SelfAttention
from inferno_ernie4_5.config import ErnieConfig


class Ernie4_5ForCausalLM(CausalLM):  # as in checkpoints
    def __init__(self, config: ErnieConfig) -> None:
        bias = config.use_bias
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=bias,
                    output_bias=bias,
                ),
                GatedMLP(config.hidden_size, config.intermediate_size, bias=bias),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        decoder = Decoder.of(config, layers, interleaved=True)
        super().__init__(decoder, tied=config.tie_word_embeddings)
