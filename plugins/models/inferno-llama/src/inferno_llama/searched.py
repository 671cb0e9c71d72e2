"""DeciLM and Llama-Nemotron: Llamas in which a search has given each layer key/value heads and a
width, or left out its attention or its MLP.

https://arxiv.org/abs/2411.19146. Suffixes: T packed tokens, D hidden.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from inferno.nn import CausalLM, Decoder, GatedMLP, RMSNorm, SelfAttention
from inferno.nn.batch import Batch
from inferno_llama.searched_config import SearchedConfig


class SearchedLayer(nn.Module):
    """A decoder layer, or a part of one."""

    def __init__(self, config: SearchedConfig, layer: int, spec_id: int) -> None:
        super().__init__()
        block, size, eps = config.blocks[layer], config.hidden_size, config.rms_norm_eps
        self.attends, self.feeds = block.kv_heads > 0, block.width > 0
        if self.attends:
            self.input_layernorm = RMSNorm(size, eps)
            self.self_attn = SelfAttention(
                spec_id,
                config.attention_spec(layer),
                size,
                bias=config.attention_bias,
                output_bias=config.attention_bias,
            )
        if self.feeds:
            self.post_attention_layernorm = RMSNorm(size, eps)
            self.mlp = GatedMLP(size, block.width, bias=config.mlp_bias)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor | None]:
        if self.attends:
            x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
            delta_TD = self.self_attn(h_TD, rotation, batch)
        if self.feeds:
            x_TD, h_TD = self.post_attention_layernorm.after(x_TD, delta_TD)
            delta_TD = self.mlp(h_TD)
        return x_TD, delta_TD


class DeciLMForCausalLM(CausalLM):
    def __init__(self, config: SearchedConfig) -> None:
        attending = {layer: n for n, layer in enumerate(config.spec_layers)}
        layers = (
            SearchedLayer(config, layer, attending.get(layer, 0))
            for layer in range(config.num_hidden_layers)
        )
        super().__init__(Decoder.of(config, layers), tied=config.tie_word_embeddings)
