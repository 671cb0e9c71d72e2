"""The fields of `config.json` that Gemma 3n reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, Self

import attrs
from attrs import field, frozen
from attrs.validators import deep_iterable, ge, gt, lt, optional

from inferno.configs import SLIDING, RopeConfig, check_known, check_positive
from inferno.contracts import AttentionSpec
from inferno.contracts.text_parts import text_config
from inferno.errors import CheckpointError
from inferno_gemma.sharing_config import SharingConfig

_ABOVE_0: Any = optional(gt(0))


@frozen(kw_only=True)
class Gemma3nConfig(SharingConfig):
    """Gemma 3n, text. Fields that configs omit have transformers' defaults."""

    vocab_size: int = 262_400
    hidden_size: int = 2048
    intermediate_size: int = 16_384
    """The largest of `inner_sizes`."""
    inner_sizes: tuple[int, ...] = ()
    """The inner width of each layer's MLP: `intermediate_size` of files, which may be one for
    all."""
    num_hidden_layers: int = 35
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 256
    max_position_embeddings: int = 32_768
    tie_word_embeddings: bool = True
    sliding_window: int | None = 512
    num_kv_shared_layers: int = field(default=15, validator=ge(0))
    final_logit_softcapping: float | None = field(default=30.0, validator=_ABOVE_0)
    hidden_size_per_layer_input: int = field(default=256, validator=gt(0))
    altup_num_inputs: int = field(default=4, validator=gt(1))
    """States of a token (AltUp)."""
    altup_active_idx: int = field(default=0, validator=ge(0))
    """The one that layers compute."""
    altup_correct_scale: bool = True
    laurel_rank: int = field(default=64, validator=gt(0))
    activation_sparsity_pattern: tuple[float, ...] = field(
        default=(), validator=deep_iterable([ge(0), lt(1)])
    )
    """The part of each layer's gates that is zero, if they are normally distributed. Default: 0.95
    in the first ten of more than ten layers."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "hidden_activation", None, "gelu_pytorch_tanh")
        layers = config.get("num_hidden_layers", attrs.fields(cls).num_hidden_layers.default)
        sizes = config.get("intermediate_size", attrs.fields(cls).intermediate_size.default)
        sizes = list(sizes) if isinstance(sizes, list | tuple) else [sizes] * layers
        config = {
            "rope_theta": 1e6,
            **config,
            "intermediate_size": max(sizes, default=0),
            "inner_sizes": sizes,
        }
        local = (config.get("rope_parameters") or {}).get(SLIDING) or {}
        theta = config.get("rope_local_base_freq") or 1e4
        rope = RopeConfig.from_json({"rope_parameters": local, "rope_theta": theta})
        read = attrs.evolve(super().from_json(config), local_rope=rope)
        sparse = 10 if layers > 10 else 0
        pattern = read.activation_sparsity_pattern or (0.95,) * sparse + (0.0,) * (layers - sparse)
        read = attrs.evolve(read, activation_sparsity_pattern=pattern)
        check_positive(**{f"intermediate_size[{n}]": size for n, size in enumerate(sizes)})
        for name, given in (("intermediate_size", sizes), ("activation_sparsity_pattern", pattern)):
            if len(given) != layers:
                raise CheckpointError(
                    f"config.json: {name} has {len(given)} entries", f"It must have {layers}."
                )
        if read.altup_active_idx >= read.altup_num_inputs:
            raise CheckpointError(
                f"config.json: altup_active_idx is {read.altup_active_idx}",
                f"It must be below altup_num_inputs, {read.altup_num_inputs}.",
            )
        read.check_sharing()
        rope.check_width(read.head_dim)
        return read

    @classmethod
    def from_multimodal(cls, config: Mapping[str, Any]) -> Self:
        """The text config of a multimodal checkpoint, or of its text part."""
        return cls.from_json(text_config(config) or config)

    @property
    def activation_sparsity_scale(self) -> tuple[float, ...]:
        """How many standard deviations above their mean the gates of each layer are cut off; minus
        infinity if they are not."""
        normal, none = NormalDist(), float("-inf")
        return tuple(normal.inv_cdf(p) if p else none for p in self.activation_sparsity_pattern)

    @property
    def num_states(self) -> int:
        return self.altup_num_inputs

    @property
    def first_modules(self) -> tuple[str, ...]:
        return (*super().first_modules, "altup_projections")

    def slides(self, layer: int) -> bool:
        return (layer + 1) % 5 > 0

    def attention_spec(self, layer: int) -> AttentionSpec:
        return attrs.evolve(super().attention_spec(layer), scale=1.0)
