"""What Phi and Phi-3 read of `config.json`, under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config

_PHI_3_ORIGINAL = 4096
"""Context of the first training, where `config.json` does not say."""


@frozen(kw_only=True)
class PhiConfig:
    """Phi-1, 1.5 and 2."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """0: as many as query heads."""
    max_position_embeddings: int = 2048
    layer_norm_eps: float = 1e-5
    qk_layernorm: bool = False
    fused_qkv: bool = False
    """q, k and v are one matrix: GGUF files made of the first checkpoints have that."""
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> PhiConfig:
        read = read_config(cls, config)
        check_known(config, "hidden_act", "gelu_new", "gelu_pytorch_tanh")
        check_known(config, "tie_word_embeddings", False)
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads,
        )  # fmt: skip
        return attrs.evolve(
            read,
            num_key_value_heads=read.num_key_value_heads or read.num_attention_heads,
            rope=RopeScaling.from_json({"partial_rotary_factor": 0.5, **config}),
        )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def attention_need(self) -> AttentionNeed:
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need] * self.num_hidden_layers


@frozen(kw_only=True)
class Phi3Config:
    """Phi-3, 3.5 and 4."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """0: as many as query heads."""
    head_dim: int = 0
    """0: hidden_size / num_attention_heads."""
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None
    tie_word_embeddings: bool = False
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Phi3Config:
        read = read_config(cls, config)
        check_known(config, "hidden_act", "silu", "swish")
        for bias in ("attention_bias", "mlp_bias", "lm_head_bias"):
            check_known(config, bias, False)
        check_positive(
            vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
            num_attention_heads=read.num_attention_heads,
            sliding_window=1 if read.sliding_window is None else read.sliding_window,
        )  # fmt: skip
        head_dim = read.head_dim or read.hidden_size // read.num_attention_heads
        return attrs.evolve(
            read,
            num_key_value_heads=read.num_key_value_heads or read.num_attention_heads,
            head_dim=head_dim,
            rope=_rope(config, head_dim),
        )

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    @property
    def attention_need(self) -> AttentionNeed:
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            sliding_window=self.sliding_window,
        )

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need] * self.num_hidden_layers


def _rope(config: Mapping[str, Any], head_dim: int) -> RopeScaling:
    """longrope, first spelt "su", whose original context stands beside it."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(scaling, Mapping):
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        original = config.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")
        scaling = {
            **scaling,
            "rope_type": "longrope" if kind == "su" else kind,
            "original_max_position_embeddings": original or _PHI_3_ORIGINAL,
        }
    rope = RopeScaling.from_json({**config, "rope_parameters": scaling})
    if rope.rope_type not in ("default", "longrope"):
        raise CheckpointError(f"config.json: rope_type is {rope.rope_type!r}", "Phi-3 has longrope or none.")
    pairs = int(head_dim * rope.partial_rotary_factor) // 2
    for name in ("short_factor", "long_factor") if rope.rope_type == "longrope" else ():
        if len(getattr(rope, name)) != pairs:
            raise CheckpointError(
                f"config.json: {name} has {len(getattr(rope, name))} numbers", f"It must have {pairs}, half of what rotates."
            )
    return rope
