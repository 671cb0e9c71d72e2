"""What Mamba-2 reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import (
    NO_LIMITS,
    check_known,
    check_mamba2_heads,
    check_positive,
    mamba2_state,
    read_config,
    time_step_limit,
)
from inferno.contracts import StateSpec


@frozen(kw_only=True)
class Mamba2Config:
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_heads: int = 128
    head_dim: int = 64
    state_size: int = 128
    n_groups: int = 8
    expand: int = 2
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    layer_norm_epsilon: float = 1e-5
    residual_in_fp32: bool = True
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 262_144
    """Configs do not say: a state has no longest context. What the largest model was tried with."""
    dt_limit: tuple[float, float] = NO_LIMITS
    """`time_step_limit`."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "hidden_act", "silu", "swish", None)
        read = read_config(cls, config)
        sizes = (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_heads",
            "head_dim",
            "state_size",
            "n_groups",
            "expand",
            "conv_kernel",
            "max_position_embeddings",
        )
        check_positive(**{name: getattr(read, name) for name in sizes})
        inner, groups = read.expand * read.hidden_size, ("n_groups", read.n_groups)
        check_mamba2_heads("num_heads", read.num_heads, read.head_dim, inner, groups)
        return attrs.evolve(read, dt_limit=time_step_limit(config))

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    @property
    def state_spec(self) -> StateSpec:
        """What every layer keeps."""
        return mamba2_state(
            heads=self.num_heads,
            width=self.head_dim,
            state_size=self.state_size,
            groups=self.n_groups,
            taps=self.conv_kernel,
        )

    def cache_specs(self) -> list[StateSpec]:
        return [self.state_spec] * self.num_hidden_layers
