"""The fields of `config.json` that Mistral reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import WindowedConfig, check_experts
from inferno.errors import CheckpointError

_FIRST_WINDOW = 4096
"""Window if `config.json` omits it; null means none."""


@frozen(kw_only=True)
class MistralConfig(WindowedConfig):
    max_position_embeddings: int = 131_072

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        if "llama_4_scaling_beta" in (config.get("rope_parameters") or {}):
            raise CheckpointError(
                "config.json: llama_4_scaling_beta scales queries by their position (Ministral 3)",
                'Its architecture is Ministral3ForCausalLM: correct "architectures".',
            )
        return super().from_json({"sliding_window": _FIRST_WINDOW, **config})


@frozen(kw_only=True)
class Ministral3Config(WindowedConfig):
    """Ministral 3: queries are multiplied by a factor that grows with their position."""

    max_position_embeddings: int = 262_144
    rms_norm_eps: float = 1e-5

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        for name in ("llama_4_scaling_beta", "original_max_position_embeddings"):
            if not getattr(read.rope, name):
                raise CheckpointError(
                    f"config.json: rope_parameters has no {name}",
                    "Queries are multiplied by 1 + llama_4_scaling_beta * "
                    "ln(1 + floor(position / original_max_position_embeddings)): add both.",
                )
        return read


@frozen(kw_only=True)
class MixtralConfig(WindowedConfig):
    """Mixtral. `intermediate_size` is that of one expert."""

    num_key_value_heads: int = 8
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        theta = config.get("rope_theta")
        read = super().from_json(
            {
                "num_local_experts": config.get("num_experts"),
                **config,
                "rope_theta": 1e6 if theta is None else theta,
                "layer_types": None,
            }
        )
        check_experts(read.num_local_experts, read.num_experts_per_tok)
        return read

    @property
    def num_experts(self) -> int:
        return self.num_local_experts
