"""What Falcon-H1 reads of `config.json`, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import (
    NO_LIMITS,
    DecoderConfig,
    check_mamba2_heads,
    check_positive,
    mamba2_state,
    time_step_limit,
)
from inferno.contracts import AttentionSpec, StateSpec
from inferno.errors import CheckpointError


@frozen(kw_only=True)
class FalconH1Config(DecoderConfig):
    """Every layer has attention and, beside it, a state."""

    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    projectors_bias: bool = False
    """Of the last projection of the states."""
    mamba_d_ssm: int = 0
    """Inner width of the states; 0: mamba_expand · hidden_size."""
    mamba_expand: int = 2
    mamba_n_heads: int = 128
    mamba_d_head: int = 0
    """Left out, or "auto": the inner width / mamba_n_heads."""
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    mamba_rms_norm: bool = False
    mamba_norm_before_gate: bool = True
    dt_limit: tuple[float, float] = NO_LIMITS
    """`time_step_limit`."""
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
        head = config.get("mamba_d_head")
        read = super().from_json({**config, "mamba_d_head": None if head == "auto" else head})
        sizes = ("mamba_expand", "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
        check_positive(**{name: getattr(read, name) for name in sizes})
        inner = read.mamba_d_ssm or read.mamba_expand * read.hidden_size
        width, groups = read.mamba_d_head or inner // read.mamba_n_heads, read.mamba_n_groups
        named = ("mamba_n_groups", groups)
        check_mamba2_heads("mamba_n_heads", read.mamba_n_heads, width, inner, named)
        for name, count in (("ssm_multipliers", 5), ("mlp_multipliers", 2)):
            if len(given := getattr(read, name)) not in (0, count):
                raise CheckpointError(
                    f"config.json: {name} has {len(given)} numbers", f"It must have {count}."
                )
        return attrs.evolve(
            read,
            mamba_d_ssm=inner,
            mamba_d_head=width,
            dt_limit=time_step_limit(config),
            ssm_multipliers=read.ssm_multipliers or (1.0,) * 5,
            mlp_multipliers=read.mlp_multipliers or (1.0,) * 2,
        )

    @property
    def state_spec(self) -> StateSpec:
        """What a layer keeps beside its keys and values."""
        return mamba2_state(
            heads=self.mamba_n_heads,
            width=self.mamba_d_head,
            state_size=self.mamba_d_state,
            groups=self.mamba_n_groups,
            taps=self.mamba_d_conv,
        )

    def attention_spec(self, layer: int) -> AttentionSpec:
        # A factor on keys is one on scores.
        spec = super().attention_spec(layer)
        return attrs.evolve(spec, scale=spec.scale * self.key_multiplier)

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        """Each layer's attention, then its state."""
        layers = range(self.num_hidden_layers)
        return [s for layer in layers for s in (self.attention_spec(layer), self.state_spec)]
