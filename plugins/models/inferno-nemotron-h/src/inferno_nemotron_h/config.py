"""What Nemotron-H reads of `config.json`, under its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
from attrs import frozen

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

MAMBA, MLP, MOE = "linear_attention", "mlp", "moe"
_KINDS = {"M": MAMBA, "*": FULL, "-": MLP, "E": MOE, "mamba": MAMBA, "attention": FULL}
"""A layer's type as published patterns and older lists have it."""
_OLD_NAMES = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_dt_limit": "time_step_limit",
}


@frozen(kw_only=True)
class NemotronHConfig(DecoderConfig):
    """Each layer is one block: a state, attention, an MLP or a mixture of experts."""

    layer_types: tuple[str, ...] = ()
    """Each layer's: `MAMBA`, `FULL`, `MLP` or `MOE`."""
    intermediate_size: int = 21_504
    rms_norm_eps: float = 1e-5
    """`layer_norm_epsilon`."""
    mlp_bias: bool = False
    use_bias: bool = False
    """Of the projections of layers with a state."""
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    ssm_state_size: int = 128
    n_groups: int = 8
    conv_kernel: int = 4
    use_conv_bias: bool = True
    dt_limit: tuple[float, float] = NO_LIMITS
    """`time_step_limit`."""
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    n_shared_experts: int = 1
    moe_intermediate_size: int = 7688
    moe_shared_expert_intermediate_size: int = 7688
    moe_latent_size: int | None = None
    """Width that routed experts read and write; None: the hidden size."""
    routed_scaling_factor: float = 1.0
    norm_topk_prob: bool = True
    n_group: int = 1
    topk_group: int = 1

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        known = {_OLD_NAMES.get(name, name): value for name, value in config.items()}
        check_known(known, "mlp_hidden_act", None, "relu2")
        check_known(known, "mamba_hidden_act", None, "silu", "swish")
        check_known(known, "sliding_window", None)
        check_known(known, "attention_bias", None, False)
        types = _layer_types(known)
        fields = {
            "layer_types": types,
            "num_hidden_layers": len(types),
            "rms_norm_eps": known.get("layer_norm_epsilon", known.get("norm_eps")),
            "num_key_value_heads": known.get("num_key_value_heads", 8),
            "head_dim": known.get("head_dim", known.get("attention_head_dim", 128)),
        }
        read = super().from_json({**known, **fields})
        sizes = (
            "mamba_num_heads",
            "mamba_head_dim",
            "ssm_state_size",
            "n_groups",
            "conv_kernel",
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
        )
        check_positive(**{name: getattr(read, name) for name in sizes})
        if read.moe_latent_size is not None:
            check_positive(moe_latent_size=read.moe_latent_size)
        inner = read.mamba_num_heads * read.mamba_head_dim
        groups = ("n_groups", read.n_groups)
        heads, width = read.mamba_num_heads, read.mamba_head_dim
        check_mamba2_heads("mamba_num_heads", heads, width, inner, groups)
        if MOE in types:
            check_known(known, "n_shared_experts", None, 1)
            check_experts(
                read.n_routed_experts,
                read.num_experts_per_tok,
                groups=read.n_group,
                top_groups=read.topk_group,
            )
        return attrs.evolve(read, dt_limit=time_step_limit(known))

    @property
    def num_experts(self) -> int:
        return self.n_routed_experts if MOE in self.layer_types else 0

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return (*super().unused_tensors, "mtp.*")

    @property
    def state_spec(self) -> StateSpec:
        """What a layer with a state keeps."""
        return mamba2_state(
            heads=self.mamba_num_heads,
            width=self.mamba_head_dim,
            state_size=self.ssm_state_size,
            groups=self.n_groups,
            taps=self.conv_kernel,
        )

    @property
    def spec_layers(self) -> tuple[int, ...]:
        """Those of the layers that keep something."""
        kinds = enumerate(self.layer_types)
        return tuple(layer for layer, kind in kinds if kind in (FULL, MAMBA))

    def layer_id(self, layer: int) -> int:
        """The number of a layer among those that keep something."""
        return sum(kind in (FULL, MAMBA) for kind in self.layer_types[:layer])

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        return [
            self.attention_spec(layer) if kind == FULL else self.state_spec
            for layer, kind in enumerate(self.layer_types)
            if kind in (FULL, MAMBA)
        ]


def _layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """A list of types, or a pattern with a letter for each. Raises CheckpointError."""
    given = config.get("layers_block_type") or config.get("layer_types")
    given = given or config.get("hybrid_override_pattern")
    listed = given if isinstance(given, Sequence) else ()
    types = tuple(_KINDS.get(kind, kind) if isinstance(kind, str) else "" for kind in listed)
    if not types or not {*types} <= {MAMBA, FULL, MLP, MOE}:
        raise CheckpointError(
            f"config.json: layers_block_type or hybrid_override_pattern is {str(given)[:100]!r}",
            f"It must name each layer's type: {MAMBA}, {FULL}, {MLP} or {MOE}; or M, *, - or E.",
        )
    count = config.get("num_hidden_layers")
    if count is not None and count != len(types):
        raise CheckpointError(
            f"config.json: num_hidden_layers is {count!r}, and {len(types)} layers have a type",
            "Check both: one of them is wrong.",
        )
    return types
