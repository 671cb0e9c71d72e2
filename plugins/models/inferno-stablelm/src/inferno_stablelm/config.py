"""What StableLM reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import DecoderConfig


@frozen(kw_only=True)
class StableLmConfig(DecoderConfig):
    max_position_embeddings: int = 4096
    layer_norm_eps: float = 1e-5
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    """Each query and key head has a norm with a weight of its own."""
    use_parallel_residual: bool = False
    has_mlp_norm: bool | None = None
    """How GGUF files say it: a parallel block has one norm."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json({"partial_rotary_factor": 0.25, **config, "head_dim": None})
        parallel = (
            read.use_parallel_residual if read.has_mlp_norm is None else not read.has_mlp_norm
        )
        return attrs.evolve(read, use_parallel_residual=parallel)
