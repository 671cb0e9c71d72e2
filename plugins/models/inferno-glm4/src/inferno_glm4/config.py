"""What GLM-4 reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import DecoderConfig


@frozen(kw_only=True)
class Glm4Config(DecoderConfig):
    num_key_value_heads: int = 2
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1.5625e-7
    attention_bias: bool = True
    """Of q, k and v; the output has none."""
    fused_qkv: bool = False
    """q, k and v are one matrix: in GGUF files of `chatglm` made from the first checkpoints."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        given = {"partial_rotary_factor": 0.5, **config}
        if "fused_qkv" not in given:
            given = {"head_dim": 128, **given}
        elif given[
            "fused_qkv"
            # `chatglm` files do not store head_dim: it is hidden_size / num_attention_heads
        ]:
            given["attention_bias"] = given["fused_qkv_bias"]
        return super().from_json(given)
