"""What Granite 3 and 4 read of `config.json`, under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import field, frozen
from attrs.validators import gt

from inferno.configs import (
    FULL,
    NO_LIMITS,
    DecoderConfig,
    check_experts,
    check_known,
    check_mamba2_heads,
    check_positive,
    mamba2_state,
    time_step_limit,
)
from inferno.contracts import AttentionSpec, StateSpec
from inferno.errors import CheckpointError

LINEAR = "linear_attention"
_KINDS = {"attention": FULL, "mamba": LINEAR, FULL: FULL, LINEAR: LINEAR}
"""What published configs call a layer, and what transformers 5 writes."""


@frozen(kw_only=True)
class GraniteConfig(DecoderConfig):
    """Granite 3."""

    max_position_embeddings: int = 2048
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """Factor on what attention, state and MLP add."""
    attention_multiplier: float = 1.0
    """Factor on q·k before the softmax."""
    logits_scaling: float = field(default=1.0, validator=gt(0))
    """Logits are divided by it."""
    position_embedding_type: str | None = "rope"
    """"rope", or none at all, as in Granite 4, which may have neither experts nor states."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "position_embedding_type", None, "nope", "rope")
        return super().from_json(config)

    @property
    def rotates(self) -> bool:
        return self.position_embedding_type == "rope"

    def attention_spec(self, layer: int) -> AttentionSpec:
        return attrs.evolve(super().attention_spec(layer), scale=self.attention_multiplier)


@frozen(kw_only=True)
class GraniteHybridConfig(GraniteConfig):
    """Granite 4. Its `intermediate_size` is that of one expert."""

    position_embedding_type: str | None = None
    layer_types: tuple[str, ...] = ()
    """Each layer's, `FULL` or `LINEAR`; left out: every one is linear."""
    num_local_experts: int = 8
    """0: none beside the shared MLP."""
    num_experts_per_tok: int = 2
    shared_intermediate_size: int = 1024
    mamba_n_heads: int = 128
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_head: int = 0
    """Left out, or "auto": mamba_expand · hidden_size / mamba_n_heads."""
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    dt_limit: tuple[float, float] = NO_LIMITS
    """`time_step_limit`."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        types = config.get("layer_types") or config.get("layers_block_type") or ()
        head = config.get("mamba_d_head")
        read = super().from_json(
            {**config, "layer_types": None, "mamba_d_head": 0 if head == "auto" else head}
        )
        sizes = (
            "mamba_n_heads",
            "mamba_n_groups",
            "mamba_d_state",
            "mamba_d_conv",
            "mamba_expand",
            "shared_intermediate_size",
        )
        check_positive(**{name: getattr(read, name) for name in sizes})
        if read.num_local_experts:
            check_experts(read.num_local_experts, read.num_experts_per_tok)
        inner, groups = (
            read.mamba_expand * read.hidden_size,
            ("mamba_n_groups", read.mamba_n_groups),
        )
        head_dim = read.mamba_d_head or inner // read.mamba_n_heads
        check_mamba2_heads("mamba_n_heads", read.mamba_n_heads, head_dim, inner, groups)
        known = tuple(_KINDS.get(kind, "") for kind in types) or (LINEAR,) * read.num_hidden_layers
        if len(known) != read.num_hidden_layers or "" in known:
            raise CheckpointError(
                f"config.json: layer_types has {len(types)} entries, "
                f"{', '.join(sorted(map(str, set(types))))}",
                f"It must have {read.num_hidden_layers}, each {' or '.join(_KINDS)}.",
            )
        limits = time_step_limit(config)
        return attrs.evolve(read, layer_types=known, mamba_d_head=head_dim, dt_limit=limits)

    @property
    def num_experts(self) -> int:
        return self.num_local_experts

    @property
    def state_spec(self) -> StateSpec:
        """What a Mamba layer keeps."""
        return mamba2_state(
            heads=self.mamba_n_heads,
            width=self.mamba_d_head,
            state_size=self.mamba_d_state,
            groups=self.mamba_n_groups,
            taps=self.mamba_d_conv,
        )

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        return [
            self.attention_spec(layer) if kind == FULL else self.state_spec
            for layer, kind in enumerate(self.layer_types)
        ]
