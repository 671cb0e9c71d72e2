"""The fields of `config.json` that Llama reads, under its names."""

from __future__ import annotations

from attrs import frozen

from inferno.configs import DecoderConfig


@frozen(kw_only=True)
class LlamaConfig(DecoderConfig):
    max_position_embeddings: int = 2048
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # The first conversions stored the rotary tables of every layer.
        return ("*.rotary_emb.inv_freq", *super().unused_tensors)
