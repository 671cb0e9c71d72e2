"""What Qwen3-Next and Qwen3.5 (text) read of `config.json`, under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import FULL, DecoderConfig, check_experts, check_positive
from inferno.contracts import AttentionSpec, CacheTensor, StateSpec
from inferno.contracts.states import COMPUTE
from inferno.errors import CheckpointError

LINEAR = "linear_attention"


@frozen(kw_only=True)
class Qwen3NextConfig(DecoderConfig):
    """Its `intermediate_size` is that of the layers without experts."""

    intermediate_size: int = 5632
    num_key_value_heads: int = 2
    head_dim: int = 256
    max_position_embeddings: int = 32_768
    attention_bias: bool = False
    layer_types: tuple[str, ...] = ()
    """Each layer's, `FULL` or `LINEAR`; left out: every `full_attention_interval`-th is full."""
    full_attention_interval: int = 4
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    num_experts: int = 512
    """0: no layer has any."""
    num_experts_per_tok: int = 10
    moe_intermediate_size: int = 512
    """Of one expert."""
    shared_expert_intermediate_size: int = 512
    norm_topk_prob: bool = True
    decoder_sparse_step: int = 1
    """Every so many layers has experts, beginning with that of this number, counted from 1."""
    mlp_only_layers: tuple[int, ...] = ()
    """Layers that have none all the same."""
    num_nextn_predict_layers: int = 1
    """The number of multi-token-prediction layers, which configs of Qwen3-Next do not say."""
    separate_projections: bool = False
    """Whether a linear layer's inputs have matrices of their own, as in Qwen3.5, or are stored key
    head by key head."""
    grouped_ba: bool = False
    """Of separate projections: whether what beta and decay are made of is one matrix, stored key
    head by key head, as llama.cpp stores Qwen3-Next."""
    tiled_heads: bool = False
    """Whether value heads are stored by their number in their key head first, as llama.cpp stores
    Qwen3.5: the first of each key head, then the second of each."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        unsaid = {"partial_rotary_factor": 0.25}
        if "mtp_num_hidden_layers" in config:  # Qwen3.5's name
            unsaid["num_nextn_predict_layers"] = config["mtp_num_hidden_layers"]
        read = super().from_json({**unsaid, **config})
        sizes = (
            "full_attention_interval",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "linear_conv_kernel_dim",
            "decoder_sparse_step",
        )
        check_positive(**{name: getattr(read, name) for name in sizes})
        if read.linear_num_value_heads % read.linear_num_key_heads:
            raise CheckpointError(
                f"config.json: linear_num_value_heads is {read.linear_num_value_heads}",
                f"It must be a multiple of linear_num_key_heads, {read.linear_num_key_heads}.",
            )
        if read.num_experts:
            check_experts(read.num_experts, read.num_experts_per_tok)
            check_positive(
                moe_intermediate_size=read.moe_intermediate_size,
                shared_expert_intermediate_size=read.shared_expert_intermediate_size,
            )
        types = read.layer_types or tuple(
            LINEAR if (layer + 1) % read.full_attention_interval else FULL
            for layer in range(read.num_hidden_layers)
        )
        if len(types) != read.num_hidden_layers or not set(types) <= {FULL, LINEAR}:
            raise CheckpointError(
                f"config.json: layer_types has {len(types)} entries, "
                f"{', '.join(sorted(set(types)))}",
                f"It must have {read.num_hidden_layers}, each {FULL} or {LINEAR}.",
            )
        return attrs.evolve(read, layer_types=types)

    @property
    def mtp_tensors(self) -> tuple[str, ...]:
        return ("mtp.*",)

    def mtp_specs(self) -> list[AttentionSpec]:
        return [self.attention_spec(0)] * self.num_nextn_predict_layers

    def has_experts(self, layer: int) -> bool:
        return (
            self.num_experts > 0
            and layer not in self.mlp_only_layers
            and (layer + 1) % self.decoder_sparse_step == 0
        )

    @property
    def state_spec(self) -> StateSpec:
        """What a linear layer keeps: the inputs its convolution looks back at, and a matrix for
        each value head."""
        heads, k, v = (
            self.linear_num_value_heads,
            self.linear_key_head_dim,
            self.linear_value_head_dim,
        )
        channels = 2 * self.linear_num_key_heads * k + heads * v
        return StateSpec(
            tensors={
                "conv": CacheTensor((self.linear_conv_kernel_dim - 1, channels), COMPUTE),
                "state": CacheTensor((heads, k, v), "float32"),
            },
            heads=heads,
            groups=self.linear_num_key_heads,
            group_channels=2 * k,
        )

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        return [
            self.attention_spec(layer) if kind == FULL else self.state_spec
            for layer, kind in enumerate(self.layer_types)
        ]


def qwen3_next(config: Mapping[str, Any]) -> Qwen3NextConfig:
    return Qwen3NextConfig.from_json(config)


def qwen3_5(config: Mapping[str, Any]) -> Qwen3NextConfig:
    """No layer has experts."""
    return Qwen3NextConfig.from_json(dense_fields(config))


def qwen3_5_moe(config: Mapping[str, Any]) -> Qwen3NextConfig:
    """Every layer has experts."""
    return Qwen3NextConfig.from_json(sparse_fields(config))


def dense_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a Qwen3.5 without experts, with what it does not say."""
    return {**_text(config), "num_experts": 0, **_SEPARATE}


def sparse_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of one with experts, with what it does not say."""
    unsaid = {"num_experts": 256, "num_experts_per_tok": 8}
    fixed = {"decoder_sparse_step": 1, "mlp_only_layers": (), "norm_topk_prob": True}
    return {**unsaid, **_text(config), **fixed, **_SEPARATE}


_SEPARATE: Mapping[str, Any] = {"separate_projections": True}


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's config: of a model that also sees, a part."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise CheckpointError(
            f"config.json: text_config is {text!r}", "It must hold the language model's config."
        )
    if text is config:
        return config
    tied = config.get("tie_word_embeddings")
    return text if tied is None else {**text, "tie_word_embeddings": tied}
