"""The fields of `config.json` that Llama reads, under its names."""

from __future__ import annotations

from attrs import frozen

from inferno.configs import DecoderConfig


@frozen(kw_only=True)
class LlamaConfig(DecoderConfig):
    max_position_embeddings: int = 2048
    attention_bias: bool = False
    mlp_bias: bool = False
    output_bias: bool | None = None
    """Whether attention's output has a bias. None: `attention_bias`. No `config.json` of Llama has
    it, but TeleChat is a Llama with it."""
    down_bias: bool | None = None
    """The same of the MLP's last matrix, and `mlp_bias`."""

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # The first conversions stored the rotary tables of every layer.
        return ("*.rotary_emb.inv_freq", *super().unused_tensors)
