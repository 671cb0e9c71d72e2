"""The fields of `config.json` that StableLM reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import DecoderConfig


@frozen(kw_only=True)
class StableLmConfig(DecoderConfig):
    max_position_embeddings: int = 4096
    layer_norm_eps: float = 1e-5
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    """Whether each query and key head has a norm with its own weight."""
    use_parallel_residual: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        return super().from_json({"partial_rotary_factor": 0.25, **config, "head_dim": None})
