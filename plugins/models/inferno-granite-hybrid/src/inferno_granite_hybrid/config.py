"""What Granite 3 and 4 read of `config.json`, under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import field, frozen
from attrs.validators import gt

from inferno.configs import (
    FULL,
    DecoderConfig,
    MambaConfig,
    check_experts,
    check_known,
    check_positive,
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
class GraniteMoeConfig(GraniteConfig):
    """Granite 3's mixtures. Their `intermediate_size` is that of one expert."""

    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    shared_intermediate_size: int = 0
    """Of an MLP beside the experts; 0: there is none."""
    split_mlp: bool = False
    """As in `GraniteHybridConfig`."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        check_experts(read.num_local_experts, read.num_experts_per_tok)
        if read.shared_intermediate_size < 0:
            check_positive(shared_intermediate_size=read.shared_intermediate_size)
        return read

    @property
    def num_experts(self) -> int:
        return self.num_local_experts


@frozen(kw_only=True)
class GraniteHybridConfig(MambaConfig, GraniteConfig):
    """Granite 4. Its `intermediate_size` is that of one expert."""

    position_embedding_type: str | None = None
    layer_types: tuple[str, ...] = ()
    """Each layer's, `FULL` or `LINEAR`; left out: every one is linear."""
    num_local_experts: int = 8
    """0: none beside the shared MLP."""
    num_experts_per_tok: int = 2
    shared_intermediate_size: int = 1024
    split_mlp: bool = False
    """Whether gate and up of the shared MLP are stored as two matrices: not by
    its own checkpoints, but where another format holds an equal model."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        types = config.get("layer_types") or config.get("layers_block_type") or ()
        read = super().from_json({**config, "layer_types": None})
        check_positive(shared_intermediate_size=read.shared_intermediate_size)
        if read.num_local_experts:
            check_experts(read.num_local_experts, read.num_experts_per_tok)
        known = tuple(_KINDS.get(kind, "") for kind in types) or (LINEAR,) * read.num_hidden_layers
        if len(known) != read.num_hidden_layers or "" in known:
            raise CheckpointError(
                f"config.json: layer_types has {len(types)} entries, "
                f"{', '.join(sorted(map(str, set(types))))}",
                f"It must have {read.num_hidden_layers}, each {' or '.join(_KINDS)}.",
            )
        return attrs.evolve(read, layer_types=known)

    @property
    def num_experts(self) -> int:
        return self.num_local_experts

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        return [
            self.attention_spec(layer) if kind == FULL else self.state_spec
            for layer, kind in enumerate(self.layer_types)
        ]
