"""What Falcon-H1 reads of `config.json`, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import MambaConfig
from inferno.contracts import AttentionSpec, StateSpec
from inferno.errors import CheckpointError


@frozen(kw_only=True)
class FalconH1Config(MambaConfig):
    """Every layer has attention and, beside it, a state."""

    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    projectors_bias: bool = False
    """Of the last projection of the states."""
    mamba_d_ssm: int = 0
    """Inner width of the states; 0: mamba_expand · hidden_size."""
    mamba_rms_norm: bool = False
    mamba_norm_before_gate: bool = True
    embedding_multiplier: float = 1.0
    lm_head_multiplier: float = 1.0
    key_multiplier: float = 1.0
    attention_in_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0
    ssm_multipliers: tuple[float, ...] = ()
    """Of what a state's first projection gives: gate, x, b, c and dt. None: all 1."""
    mlp_multipliers: tuple[float, ...] = ()
    """Of the MLP's gate and of its output. None: both 1."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        for name, count in (("ssm_multipliers", 5), ("mlp_multipliers", 2)):
            if len(given := getattr(read, name)) not in (0, count):
                raise CheckpointError(
                    f"config.json: {name} has {len(given)} numbers", f"It must have {count}."
                )
        return attrs.evolve(
            read,
            ssm_multipliers=read.ssm_multipliers or (1.0,) * 5,
            mlp_multipliers=read.mlp_multipliers or (1.0,) * 2,
        )

    @property
    def mamba_inner(self) -> int:
        return self.mamba_d_ssm or super().mamba_inner

    def attention_spec(self, layer: int) -> AttentionSpec:
        # A factor on keys is one on scores.
        spec = super().attention_spec(layer)
        return attrs.evolve(spec, scale=spec.scale * self.key_multiplier)

    @property
    def spec_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.num_hidden_layers) for _ in range(2))

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        """Each layer's attention, then its state."""
        layers = range(self.num_hidden_layers)
        return [s for layer in layers for s in (self.attention_spec(layer), self.state_spec)]
