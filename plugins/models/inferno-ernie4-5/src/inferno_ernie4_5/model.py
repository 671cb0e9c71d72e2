"""ERNIE 4.5: Llama with heads rotated in adjacent pairs. In the mixtures, most layers have routed
experts, picked by softmax scores with a bias, and perhaps a shared one.

https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf; reference:
transformers/models/ernie4_5 and ernie4_5_moe.
"""

from __future__ import annotations

from torch import nn

from inferno.nn import (
    CausalLM,
    Decoder,
    DecoderLayer,
    GatedMLP,
    MixtureOfExperts,
    Routing,
    SelfAttention,
)
from inferno_ernie4_5.config import ErnieConfig, ErnieMoeConfig


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
                self.mlp(config, layer_id),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        decoder = Decoder.of(config, layers, interleaved=True)
        super().__init__(decoder, tied=config.tie_word_embeddings)

    @staticmethod
    def mlp(config: ErnieConfig, layer: int) -> nn.Module:
        return GatedMLP(config.hidden_size, config.intermediate_size, bias=config.use_bias)


class Ernie4_5_MoeForCausalLM(Ernie4_5ForCausalLM):
    @staticmethod
    def mlp(config: ErnieConfig, layer: int) -> nn.Module:
        assert isinstance(config, ErnieMoeConfig), "it is the architecture's"
        if not config.has_experts(layer):
            return GatedMLP(config.hidden_size, config.intermediate_size)
        return MixtureOfExperts(
            config.moe_num_experts,
            config.hidden_size,
            config.moe_intermediate_size,
            Routing(top_k=config.moe_k, normalize=True),
            correction=True,
            shared_size=config.moe_num_shared_experts * config.moe_intermediate_size,
        )
