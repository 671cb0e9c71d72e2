"""The fields of `config.json` that Hunyuan reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import DecoderConfig, check_known
from inferno.errors import CheckpointError


@frozen(kw_only=True)
class HunyuanConfig(DecoderConfig):
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "use_qk_norm", None, True)
        check_known(config, "use_cla", None, False)
        check_known(config, "mlp_bias", None, False)
        read = super().from_json(config)
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        alpha = scaling.get("alpha")
        if read.rope.rope_type != "dynamic" or not alpha:
            return read
        width = read.head_dim
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or alpha <= 0 or width < 4:
            raise CheckpointError(
                f"config.json: alpha of rope_scaling is {alpha!r}",
                "It must be a positive number, and heads at least 4 wide.",
            )
        theta = read.rope.rope_theta * alpha ** (width / (width - 2))
        rope = attrs.evolve(read.rope, rope_type="default", rope_theta=theta)
        return attrs.evolve(read, rope=rope)
