"""Gemma 2: Gemma 1 with pre- and post-norms, sliding windows, and soft-capped scores and logits.

https://arxiv.org/abs/2408.00118; reference: transformers/models/gemma2.
"""

from __future__ import annotations

from functools import partial

from inferno.nn import CausalLM, Decoder, GatedMLP, RMSNorm, SandwichDecoderLayer, SelfAttention
from inferno_gemma.config import Gemma2Config

Norm = partial(RMSNorm, offset=1.0)
NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


class Gemma2ForCausalLM(CausalLM):
    def __init__(self, config: Gemma2Config) -> None:
        layers = (
            SandwichDecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    output_bias=config.attention_bias,
                ),
                GatedMLP(config.hidden_size, config.intermediate_size, activation="gelu_tanh"),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
                norms=NORMS,
                norm=Norm,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        decoder = Decoder.of(config, layers, norm=Norm, embedding_scale=config.hidden_size**0.5)
        super().__init__(
            decoder, tied=config.tie_word_embeddings, soft_cap=config.final_logit_softcapping
        )
