"""The fields of `config.json` that Hunyuan reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import DecoderConfig, check_experts, check_known
from inferno.errors import CheckpointError


@frozen(kw_only=True)
class HunyuanConfig(DecoderConfig):
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "use_qk_norm", None, True)
        check_known(config, "use_cla", None, False)
        check_known(config, "mlp_bias", None, False)
        read = super().from_json(config)
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        alpha = scaling.get("alpha")
        if read.rope.rope_type != "dynamic" or not alpha:
            return read
        width = read.head_dim
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or alpha <= 0 or width < 4:
            raise CheckpointError(
                f"config.json: alpha of rope_scaling is {alpha!r}",
                "It must be a positive number, and heads at least 4 wide.",
            )
        theta = read.rope.rope_theta * alpha ** (width / (width - 2))
        rope = attrs.evolve(read.rope, rope_type="default", rope_theta=theta)
        return attrs.evolve(read, rope=rope)


@frozen(kw_only=True)
class HunyuanMoeConfig(HunyuanConfig):
    """Hunyuan with routed experts in every layer, and a shared one of the same width."""

    num_experts: int = 1
    moe_topk: int = 1
    """Experts of a token."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        fields = {**config}
        for field in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
            if isinstance(value := config.get(field), list):  # of each layer
                fields[field] = _same(field, value)
        check_known(fields, "num_shared_expert", None, 1)
        check_known(fields, "moe_intermediate_size", None, config.get("intermediate_size"))
        check_known(fields, "norm_topk_prob", None, True)
        read = super().from_json(fields)
        check_experts(read.num_experts, read.moe_topk)
        return read


def _same(field: str, values: list[Any]) -> Any:
    """Return the value that all layers have. Raises CheckpointError for others."""
    if not values or any(value != values[0] for value in values):
        raise CheckpointError(
            f"config.json: {field} differs from layer to layer: {values}",
            "This plugin computes models in which all layers are alike.",
        )
    return values[0]


def of_text_part(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a text part as that of Hunyuan alone. With "xdrope", parts of a head
    turn by an image's rows and columns: of text, all are alike, and the rest is "dynamic"."""
    config = {**fields}
    for name in ("rope_parameters", "rope_scaling"):
        scaling = config.get(name)
        if isinstance(scaling, Mapping):
            kind = scaling.get("rope_type") or scaling.get("type")
            config[name] = {**scaling, "rope_type": "dynamic" if kind == "xdrope" else kind}
    return config
