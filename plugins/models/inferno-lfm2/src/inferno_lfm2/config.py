"""What LFM2 reads of `config.json`, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import (
    CONV,
    FULL,
    DecoderConfig,
    check_experts,
    check_positive,
    numbered_layers,
)
from inferno.contracts import AttentionSpec, CacheTensor, StateSpec
from inferno.contracts.states import COMPUTE
from inferno.errors import CheckpointError


@frozen(kw_only=True)
class Lfm2Config(DecoderConfig):
    """`intermediate_size` is the inner width that the layers have."""

    max_position_embeddings: int = 128_000
    rms_norm_eps: float = 1e-5
    """`norm_eps`."""
    tie_word_embeddings: bool = True
    layer_types: tuple[str, ...] = ()
    """Each layer's, `FULL` or `CONV`."""
    conv_L_cache: int = 3
    """Taps of the convolutions."""
    conv_bias: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        rope = {} if config.get("rope_parameters") else {"rope_theta": 1_000_000.0}
        fields = {
            "rms_norm_eps": config.get("norm_eps"),
            "tie_word_embeddings": config.get(
                "tie_embedding", config.get("tie_word_embeddings", True)
            ),
            "intermediate_size": cls.inner_width(config),
        }
        read = super().from_json({**rope, **config, **fields})
        check_positive(conv_L_cache=read.conv_L_cache)
        types = numbered_layers(config, read.num_hidden_layers)
        if len(types) != read.num_hidden_layers or not {*types} <= {FULL, CONV}:
            raise CheckpointError(
                f"config.json: layer_types has {len(types)} entries, "
                f"{', '.join(sorted(set(types)))}",
                f"It must have {read.num_hidden_layers}, each {FULL} or {CONV}.",
            )
        return attrs.evolve(read, layer_types=types)

    @classmethod
    def inner_width(cls, config: Mapping[str, Any]) -> object:
        """The MLP's: two thirds of what configs say, times a factor, rounded up to a multiple,
        unless `block_auto_adjust_ff_dim` is false. The reader refuses what is not a number."""
        size = config.get("block_ff_dim", config.get("intermediate_size"))
        factor = config.get("block_ffn_dim_multiplier", 1.0)
        multiple = config.get("block_multiple_of", 256)
        if not config.get("block_auto_adjust_ff_dim", True) or not isinstance(size, int):
            return size
        size = 2 * size // 3
        if factor is None:
            return size
        if not isinstance(factor, int | float) or not isinstance(multiple, int) or multiple < 1:
            raise CheckpointError(
                f"config.json: block_ffn_dim_multiplier is {factor!r}, block_multiple_of "
                f"{multiple!r}",
                "They must be a number and a positive integer.",
            )
        return -(-int(factor * size) // multiple) * multiple

    @property
    def state_spec(self) -> StateSpec:
        """What a layer with a convolution keeps: the inputs that it looks back at."""
        shape = (self.conv_L_cache - 1, self.hidden_size)
        return StateSpec(tensors={"conv": CacheTensor(shape, COMPUTE)}, heads=self.hidden_size)

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        return [
            self.attention_spec(layer) if kind == FULL else self.state_spec
            for layer, kind in enumerate(self.layer_types)
        ]


@frozen(kw_only=True)
class Lfm2MoeConfig(Lfm2Config):
    """Routed experts after the first layers, whose MLP is as wide as configs say."""

    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    num_dense_layers: int = 2
    norm_topk_prob: bool = True
    use_expert_bias: bool = True
    routed_scaling_factor: float = 1.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        check_positive(moe_intermediate_size=read.moe_intermediate_size)
        check_experts(read.num_experts, read.num_experts_per_tok)
        return read

    @classmethod
    def inner_width(cls, config: Mapping[str, Any]) -> object:
        return config.get("intermediate_size")
