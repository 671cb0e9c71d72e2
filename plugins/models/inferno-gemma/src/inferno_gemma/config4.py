"""The fields of `config.json` that Gemma 4 reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import field, frozen
from attrs.validators import gt, optional

from inferno.configs import (
    FULL,
    SLIDING,
    RopeConfig,
    check_experts,
    check_known,
    check_positive,
)
from inferno.contracts import AttentionSpec
from inferno.contracts.text_parts import text_config
from inferno.errors import CheckpointError
from inferno_gemma.sharing_config import SharingConfig

_ROPE: Mapping[str, Any] = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}


@frozen(kw_only=True)
class Gemma4Config(SharingConfig):
    """Gemma 4, text. Fields that configs omit have transformers' defaults."""

    vocab_size: int = 262_144
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 30
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    """That of sliding-window layers."""
    global_head_dim: int = 512
    """That of full-attention layers."""
    num_global_key_value_heads: int | None = None
    """Key/value heads of full-attention layers, if `attention_k_eq_v`."""
    max_position_embeddings: int = 131_072
    tie_word_embeddings: bool = True
    sliding_window: int | None = 512
    attention_k_eq_v: bool = False
    """Whether values of full-attention layers are the projected keys."""
    final_logit_softcapping: float | None = field(default=None, validator=optional(gt(0)))
    use_double_wide_mlp: bool = False
    """Whether MLPs are twice as wide in layers that read keys of others."""
    enable_moe_block: bool = False
    """Whether layers have routed experts beside their MLP."""
    num_experts: int = 0
    top_k_experts: int = 0
    moe_intermediate_size: int = 0

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "hidden_activation", None, "gelu_pytorch_tanh")
        # With "vision", tokens of an image attend to each other: there are none here.
        check_known(config, "use_bidirectional_attention", None, "vision")
        types = config.get("layer_types")
        if types:  # as transformers does it
            config = {**config, "layer_types": [*types[:-1], FULL]}
        ropes = {**_ROPE, **(config.get("rope_parameters") or {})}
        config = {**config, "rope_parameters": ropes}
        width = attrs.fields(cls).hidden_size_per_layer_input
        if width.name in config:  # null means none here, not the default
            config = {**config, width.name: config[width.name] or 0}
        read = super().from_json(config)
        read = attrs.evolve(
            read,
            local_rope=RopeConfig.from_json(config, layer_type=SLIDING),
            **read._of_full_layers(config),
        )
        read.check_sharing()
        read.local_rope.check_width(read.head_dim)
        read.rope.check_width(read.global_head_dim)
        check_positive(global_head_dim=read.global_head_dim)
        if read.enable_moe_block:
            check_experts(read.num_experts, read.top_k_experts)
            check_positive(moe_intermediate_size=read.moe_intermediate_size)
            return read
        return attrs.evolve(read, num_experts=0, top_k_experts=0, moe_intermediate_size=0)

    @classmethod
    def from_multimodal(cls, config: Mapping[str, Any]) -> Self:
        """The text config of a multimodal checkpoint, or of its text part."""
        return cls.from_json(text_config(config) or config)

    def _of_full_layers(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What `per_layer_config` says of full-attention layers; transformers writes it instead of
        the fields for all of them."""
        each = config.get("per_layer_config") or {}
        full = {str(n) for n, kind in enumerate(self.layer_types) if kind == FULL}
        alike = {repr(sorted(fields.items())) for fields in each.values()}
        if each and (set(map(str, each)) != full or len(alike) > 1):
            raise CheckpointError(
                "config.json: per_layer_config is not of all full-attention layers alike",
                "Heads of this plugin differ between sliding and full layers only.",
            )
        fields: Mapping[str, Any] = next(iter(each.values()), {})
        names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        sizes = {ours: fields[name] for name, ours in names.items() if name in fields}
        if not self.attention_k_eq_v:
            sizes["num_global_key_value_heads"] = None
        return sizes

    @property
    def num_experts_per_tok(self) -> int:
        return self.top_k_experts

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Key/value heads of each layer."""
        return tuple(self.attention_spec(n).num_kv_heads for n in range(self.num_hidden_layers))

    @property
    def inner_sizes(self) -> tuple[int, ...]:
        """The inner width of each layer's MLP."""
        return tuple(self.inner_size(n) for n in range(self.num_hidden_layers))

    @property
    def rope_width(self) -> int:
        return self.global_head_dim

    @property
    def local_rope_width(self) -> int:
        return self.head_dim

    def slides(self, layer: int) -> bool:
        return (layer + 1) % 6 > 0 and layer + 1 < self.num_hidden_layers

    def has_values(self, layer: int) -> bool:
        return self.layer_types[layer] == SLIDING or not self.attention_k_eq_v

    def inner_size(self, layer: int) -> int:
        """Return the inner width of a layer's MLP."""
        return self.intermediate_size * (1 + (self.use_double_wide_mlp and layer >= self.num_own))

    def attention_spec(self, layer: int) -> AttentionSpec:
        spec = attrs.evolve(super().attention_spec(layer), scale=1.0)
        if self.layer_types[layer] == SLIDING:
            return spec
        kv_heads = self.num_global_key_value_heads or self.num_key_value_heads
        return attrs.evolve(spec, head_dim=self.global_head_dim, num_kv_heads=kv_heads)


@frozen(kw_only=True)
class Gemma4UnifiedConfig(Gemma4Config):
    """Gemma 4 12B, whose images and sound are read by its decoder: without inputs per layer."""

    max_position_embeddings: int = 262_144
    sliding_window: int | None = 1024
    hidden_size_per_layer_input: int = 0
