"""MiniMax-M2: queries and keys normalized over all heads together, half of each head rotated, and
routed experts in every layer, picked by sigmoid scores with a bias.

https://github.com/MiniMax-AI/MiniMax-M2; reference: transformers/models/minimax_m2.
"""

from __future__ import annotations

from functools import partial

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    MixtureOfExperts,
    ProjectionNorm,
    Routing,
    SelfAttention,
)
from inferno_minimax.config import MiniMaxM2Config


class MiniMaxM2ForCausalLM(CausalLM):
    def __init__(self, config: MiniMaxM2Config) -> None:
        picked = config.num_experts_per_tok
        routing = Routing(top_k=picked, scoring="sigmoid", normalize=True)
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    projection_norm=partial(ProjectionNorm, eps=config.rms_norm_eps),
                ),
                MixtureOfExperts(
                    config.num_local_experts,
                    config.hidden_size,
                    config.intermediate_size,
                    routing,
                    correction=True,
                    names=("w1", "w3", "w2"),
                ),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
                mlp_name="block_sparse_moe",
            )
            for layer_id in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
