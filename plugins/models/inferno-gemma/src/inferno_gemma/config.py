"""The fields of `config.json` that each generation of Gemma reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import attrs
from attrs import field, frozen
from attrs.validators import gt, optional

from inferno.configs import SLIDING, DecoderConfig, RopeConfig, WindowedConfig, check_known
from inferno.contracts import AttentionSpec

_ABOVE_0: Any = optional(gt(0))


@frozen(kw_only=True)
class GemmaConfig(DecoderConfig):
    """Gemma 1."""

    # The first configs say "gelu" but mean its tanh approximation.
    activations = ("gelu", "gelu_pytorch_tanh")

    head_dim: int = 256
    max_position_embeddings: int = 8192
    attention_bias: bool = False
    tie_word_embeddings: bool = True

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        _check_activation(config)
        check_known(config, "use_bidirectional_attention", None, False)
        return super().from_json(config)


@frozen(kw_only=True)
class Gemma2Config(WindowedConfig):
    """Gemma 2: a window in every other layer, soft caps."""

    activations = GemmaConfig.activations
    bidirectional: ClassVar[tuple[bool | None, ...]] = (None, False)
    """The values of `use_bidirectional_attention` that it computes."""

    head_dim: int = 256
    max_position_embeddings: int = 8192
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    sliding_window: int | None = 4096
    query_pre_attn_scalar: float = field(default=256.0, validator=gt(0))
    """Scores are divided by its square root."""
    attn_logit_softcapping: float | None = field(default=50.0, validator=_ABOVE_0)
    final_logit_softcapping: float | None = field(default=30.0, validator=_ABOVE_0)

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        _check_activation(config)
        check_known(config, "use_bidirectional_attention", *cls.bidirectional)
        return super().from_json(config)

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0

    def attention_spec(self, layer: int) -> AttentionSpec:
        scale, cap = self.query_pre_attn_scalar**-0.5, self.attn_logit_softcapping
        return attrs.evolve(super().attention_spec(layer), scale=scale, soft_cap=cap)


@frozen(kw_only=True)
class Gemma3Config(Gemma2Config):
    """Gemma 3: a separate rotary base for sliding-window layers. Fields that published configs omit
    have transformers' defaults."""

    vocab_size: int = 262_208
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    max_position_embeddings: int = 131_072
    sliding_window_pattern: int = field(default=6, validator=gt(0))
    """One layer in this many has full attention."""
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = field(default=None, validator=_ABOVE_0)
    local_rope: RopeConfig = RopeConfig()
    """Rotary config of the sliding-window layers. `rope` is for the others."""
    use_bidirectional_attention: bool = False
    """Whether it is an encoder, EmbeddingGemma: half of the window is on either side."""

    bidirectional = (None, False, True)

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        # transformers' config has the field, but its model does not implement it.
        check_known(config, "attn_logit_softcapping", None)
        read = super().from_json({"rope_theta": 1e6, **config})
        local = (config.get("rope_parameters") or {}).get(SLIDING)
        theta = config.get("rope_local_base_freq", 1e4)
        rope = RopeConfig.from_json({"rope_parameters": local, "rope_theta": theta})
        rope.check_width(read.head_dim)
        return attrs.evolve(read, local_rope=rope)

    def attention_spec(self, layer: int) -> AttentionSpec:
        spec = super().attention_spec(layer)
        if not self.use_bidirectional_attention:
            return spec
        window = None if spec.sliding_window is None else spec.sliding_window // 2 + 1
        return attrs.evolve(spec, bidirectional=True, sliding_window=window)

    def slides(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern > 0


def _check_activation(config: Mapping[str, Any]) -> None:
    check_known(config, "hidden_activation", None, "gelu_pytorch_tanh")
