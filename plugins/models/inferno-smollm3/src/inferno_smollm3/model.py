"""SmolLM3: Llama with layers that know nothing of positions, every fourth (arXiv:2501.18795).

https://huggingface.co/blog/smollm3; reference: transformers/models/smollm3.
"""

from __future__ import annotations

from inferno.nn import CausalLM, Decoder, DecoderLayer, GatedMLP, RopeByKind, SelfAttention
from inferno_smollm3.config import SmolLM3Config

_ROTATED, _UNROTATED = "rotated", "unrotated"


class SmolLM3ForCausalLM(CausalLM):
    def __init__(self, config: SmolLM3Config) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id,
                    config.attention_spec(layer_id),
                    config.hidden_size,
                    bias=config.attention_bias,
                    output_bias=config.attention_bias,
                    kind=_ROTATED if config.no_rope_layers[layer_id] else _UNROTATED,
                ),
                GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        rope = RopeByKind.of(config, {_ROTATED: config.rope, _UNROTATED: None})
        super().__init__(Decoder.of(config, layers, rope=rope), tied=config.tie_word_embeddings)
