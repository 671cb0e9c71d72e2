"""The fields of `config.json` that Kimi-Linear reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from inferno.configs import (
    FULL,
    DecoderConfig,
    check_experts,
    check_known,
    check_positive,
    with_dense_layers,
)
from inferno.contracts import AttentionSpec, CacheTensor, Divided, StateSpec
from inferno.contracts.states import COMPUTE
from inferno.errors import CheckpointError

LINEAR = "linear_attention"


@frozen(kw_only=True)
class KimiLinearConfig(DecoderConfig):
    """Its `max_position_embeddings` is `model_max_length` in `config.json`, and the fields of the
    linear layers are in `linear_attn_config`."""

    kv_lora_rank: int
    q_lora_rank: int = 0
    """0: queries are projected directly."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    """Elements of a head that all heads' keys share. Nothing is rotated."""
    v_head_dim: int
    layer_types: tuple[str, ...]
    """Each layer's, `FULL` or `LINEAR`."""
    linear_num_heads: int
    linear_head_dim: int
    linear_conv_kernel_dim: int = 4
    first_k_dense_replace: int = 1
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int = 1
    moe_renormalize: bool = True
    routed_scaling_factor: float = 2.446
    num_expert_group: int = 1
    topk_group: int = 1

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        given = {name: value for name, value in config.items() if value is not None}
        check_known(given, "mla_use_nope", True)
        check_known(given, "moe_router_activation_func", "sigmoid")
        check_known(given, "moe_layer_freq", 1)
        check_known(given, "attention_bias", False)
        check_known(given, "num_nextn_predict_layers", 0)
        fields = {**_linear_fields(given), **with_dense_layers(given)}
        fields.setdefault("max_position_embeddings", given.get("model_max_length"))
        read = super().from_json({**fields, "head_dim": None, "num_key_value_heads": None})
        check_positive(
            kv_lora_rank=read.kv_lora_rank,
            q_lora_rank=read.q_lora_rank or 1,
            qk_nope_head_dim=read.qk_nope_head_dim,
            qk_rope_head_dim=read.qk_rope_head_dim,
            v_head_dim=read.v_head_dim,
            linear_num_heads=read.linear_num_heads,
            linear_head_dim=read.linear_head_dim,
            linear_conv_kernel_dim=read.linear_conv_kernel_dim,
            moe_intermediate_size=read.moe_intermediate_size,
            num_shared_experts=read.num_shared_experts,
        )
        groups, top = read.num_expert_group, read.topk_group
        check_experts(read.num_experts, read.num_experts_per_token, groups, top)
        types = read.layer_types
        if len(types) != read.num_hidden_layers or not {*types} <= {FULL, LINEAR}:
            raise CheckpointError(
                f"config.json: layer_types is {str(list(types))[:200]}",
                f"It must have {read.num_hidden_layers}, each {FULL} or {LINEAR}.",
            )
        return read

    def attention_spec(self, layer: int) -> AttentionSpec:
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=1,
            head_dim=self.kv_lora_rank + self.qk_rope_head_dim,
            latent_dim=self.kv_lora_rank,
            scale=(self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5,
        )

    @property
    def state_spec(self) -> StateSpec:
        """What a linear layer keeps: the inputs that its convolutions look back at, and a matrix
        for each head."""
        heads, width = self.linear_num_heads, self.linear_head_dim
        before = self.linear_conv_kernel_dim - 1
        return StateSpec(
            tensors={
                "conv": CacheTensor((before, 3 * heads * width), COMPUTE),
                "state": CacheTensor((heads, width, width), "float32"),
            },
            heads=heads,
        )

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        return [
            self.attention_spec(layer) if kind == FULL else self.state_spec
            for layer, kind in enumerate(self.layer_types)
        ]

    @property
    def divides(self) -> Mapping[str, Divided]:
        """The matrices of linear layers that have the names of attention's."""
        kinds: dict[str, Divided] = {
            **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "state heads"),
            "o_proj": "from state",
        }
        return {
            f"model.layers.{layer}.self_attn.{name}": kind
            for layer, each in enumerate(self.layer_types)
            if each == LINEAR
            for name, kind in kinds.items()
        }


def _linear_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `linear_attn_config`, whose layers count from 1, under the names that
    transformers writes."""
    linear = config.get("linear_attn_config", {})
    if not isinstance(linear, Mapping):
        raise CheckpointError(
            f"config.json: linear_attn_config is {str(linear)[:200]}",
            "It must have the fields of the linear layers.",
        )
    names = {
        "num_heads": "linear_num_heads",
        "head_dim": "linear_head_dim",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }
    fields = {ours: linear[theirs] for theirs, ours in names.items() if theirs in linear}
    layers, full, kda = (
        config.get("num_hidden_layers"),
        linear.get("full_attn_layers"),
        linear.get("kda_layers"),
    )
    if full is None and kda is None:
        return fields
    listed = [*full, *kda] if isinstance(full, list) and isinstance(kda, list) else []
    if any(type(n) is not int for n in listed) or sorted(listed) != [*range(1, len(listed) + 1)]:
        listed = []
    if len(listed) != layers:
        raise CheckpointError(
            f"config.json: full_attn_layers is {str(full)[:100]}, kda_layers {str(kda)[:100]}",
            f"Together they must list each of {layers} layers once, from 1.",
        )
    types = [LINEAR] * len(listed)
    for n in full or ():
        types[n - 1] = FULL
    return {**fields, "layer_types": types}
