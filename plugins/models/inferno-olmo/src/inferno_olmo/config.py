"""The fields of `config.json` that each generation of OLMo reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import (
    SLIDING,
    DecoderConfig,
    RopeConfig,
    WindowedConfig,
    check_experts,
    check_known,
)

_THETA = 500_000.0
"""OLMo 3's rotary base if `config.json` omits it."""
_WINDOW = 4096
"""OLMo 3's window if `config.json` omits it; null means none."""


@frozen(kw_only=True)
class Olmo2Config(DecoderConfig):
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False


@frozen(kw_only=True)
class Olmo3Config(WindowedConfig):
    """OLMo 3: a window in three layers of four, whose rotary embedding is not stretched."""

    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    local_rope: RopeConfig = RopeConfig(rope_theta=_THETA)
    """Rotary config of the layers with a window. `rope` is for the others."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        theta = config.get("rope_theta")
        defaults = {"sliding_window": _WINDOW, "rope_theta": _THETA if theta is None else theta}
        read = super().from_json({**defaults, **config, "rope_theta": defaults["rope_theta"]})
        # A base of the whole config is that of the layers without a window, in transformers.
        local = (config.get("rope_parameters") or {}).get(SLIDING)
        rope = RopeConfig.from_json({"rope_parameters": local}, theta=_THETA)
        rope.check_width(read.head_dim)
        return attrs.evolve(read, local_rope=rope)

    def slides(self, layer: int) -> bool:
        return (layer + 1) % 4 > 0


@frozen(kw_only=True)
class OlmoeConfig(DecoderConfig):
    """OLMoE. `intermediate_size` is that of one expert."""

    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    num_experts: int = 64
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "clip_qkv", None)
        # transformers 5 writes the published `num_experts` as `num_local_experts`.
        config = {"num_experts": config.get("num_local_experts"), **config, "head_dim": None}
        read = super().from_json(config)
        check_experts(read.num_experts, read.num_experts_per_tok)
        return read
