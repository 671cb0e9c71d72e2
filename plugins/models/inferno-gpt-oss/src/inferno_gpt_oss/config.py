"""The fields of `config.json` that gpt-oss reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import WindowedConfig, check_experts, check_positive
from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError

THETA = 150_000.0


@frozen(kw_only=True)
class GptOssConfig(WindowedConfig):
    """gpt-oss. `intermediate_size` is that of one expert."""

    head_dim: int = 64
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    sliding_window: int | None = 128
    num_local_experts: int
    num_experts_per_tok: int
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json({"rope_theta": THETA, **config})
        check_positive(num_local_experts=read.num_local_experts)
        check_experts(read.num_local_experts, read.num_experts_per_tok)
        if read.rope.rope_type == "default":
            raise CheckpointError(
                "config.json: rope_scaling is missing",
                "Add it: every gpt-oss scales its context, by 32 from 4096 tokens.",
            )
        return read

    @property
    def num_experts(self) -> int:
        return self.num_local_experts

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0

    def attention_spec(self, layer: int) -> AttentionSpec:
        return attrs.evolve(super().attention_spec(layer), sinks=True)
