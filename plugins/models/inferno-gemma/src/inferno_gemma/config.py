"""What the three generations of Gemma read of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import RopeScaling, check_known, check_positive, read_config

FULL, SLIDING = "full_attention", "sliding_attention"


@frozen(kw_only=True)
class GemmaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 256
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256.0
    """Scores are divided by its square root. 0: GGUF files do not say it, see `_unsaid_scalar`."""
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    sliding_window: int | None = None
    sliding_window_pattern: int = 1
    """Every so many layers one attends to the whole context."""
    layer_types: tuple[str, ...] = ()
    """Instead of a pattern: each layer's."""
    rope: RopeScaling = RopeScaling()
    """Of the layers that attend to the whole context."""
    local_rope: RopeScaling = RopeScaling()
    """Of the layers with a window."""
    sandwich: bool = False
    """Whether a norm follows attention and MLP, too."""
    head_norms: bool = False
    """Whether every query and key head is normed."""

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need(layer) for layer in range(self.num_hidden_layers)]

    def attention_need(self, layer: int) -> AttentionNeed:
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.query_pre_attn_scalar**-0.5,
            sliding_window=self.sliding_window if self.layer_types[layer] == SLIDING else None,
            soft_cap=self.attn_logit_softcapping,
        )


def gemma(config: Mapping[str, Any]) -> GemmaConfig:
    """arXiv:2403.08295. Its first configs say "gelu" and mean the approximation by tanh."""
    check_known(config, "hidden_act", "gelu", "gelu_pytorch_tanh")
    rope = RopeScaling.from_json(config)
    read = _read(config, rope, rope)
    return attrs.evolve(
        read, query_pre_attn_scalar=read.head_dim, attn_logit_softcapping=None, final_logit_softcapping=None,
        layer_types=(FULL,) * read.num_hidden_layers,
    )  # fmt: skip


def gemma2(config: Mapping[str, Any]) -> GemmaConfig:
    """arXiv:2408.00118."""
    rope = RopeScaling.from_json(config)
    read = _read({**_GEMMA2, **config}, rope, rope)
    return attrs.evolve(read, sandwich=True)


def gemma3(config: Mapping[str, Any]) -> GemmaConfig:
    """arXiv:2503.19786. transformers does not compute a soft cap of the scores here, though its config has the field."""
    check_known(config, "attn_logit_softcapping", None)
    rope = RopeScaling.from_json(config, theta=1e6)
    local = (config.get("rope_parameters") or {}).get(SLIDING)
    local_rope = RopeScaling.from_json({"rope_parameters": local, "rope_theta": config.get("rope_local_base_freq", 1e4)})
    unwindowed = config.get("query_pre_attn_scalar") == 0 and "sliding_window" not in config  # a GGUF file's way to say it
    read = _read({**_GEMMA3, **config, **({"sliding_window_pattern": 1} if unwindowed else {})}, rope, local_rope)
    return attrs.evolve(read, sandwich=True, head_norms=True)


def gemma3_text(config: Mapping[str, Any]) -> GemmaConfig:
    """Of a model that also sees: what its language model is."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise CheckpointError("config.json: text_config is missing", "It must hold the language model's config.")
    return gemma3({**text, "tie_word_embeddings": config.get("tie_word_embeddings", True)})


_GEMMA2: Mapping[str, Any] = {
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096, "sliding_window_pattern": 2,
}  # fmt: skip
_GEMMA3: Mapping[str, Any] = {
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
    "sliding_window": 4096, "sliding_window_pattern": 6,
}  # fmt: skip
"""transformers' own defaults: published configs leave such fields out."""


def _read(config: Mapping[str, Any], rope: RopeScaling, local_rope: RopeScaling) -> GemmaConfig:
    check_known(config, "hidden_activation", None, "gelu_pytorch_tanh")
    check_known(config, "use_bidirectional_attention", None, False)
    read = read_config(GemmaConfig, config)
    check_positive(
        vocab_size=read.vocab_size, hidden_size=read.hidden_size, num_hidden_layers=read.num_hidden_layers,
        num_attention_heads=read.num_attention_heads, num_key_value_heads=read.num_key_value_heads, head_dim=read.head_dim,
        sliding_window=1 if read.sliding_window is None else read.sliding_window,
        sliding_window_pattern=read.sliding_window_pattern,
    )  # fmt: skip
    pattern = read.sliding_window_pattern
    types = read.layer_types or tuple(SLIDING if (i + 1) % pattern else FULL for i in range(read.num_hidden_layers))
    if len(types) != read.num_hidden_layers or not {FULL, SLIDING} >= set(types):
        raise CheckpointError(
            f"config.json: layer_types is {list(types)} for {read.num_hidden_layers} layers",
            f"It must say {FULL!r} or {SLIDING!r} for each layer.",
        )
    return attrs.evolve(
        read, layer_types=types, rope=rope, local_rope=local_rope,
        query_pre_attn_scalar=read.query_pre_attn_scalar or _unsaid_scalar(read),
    )  # fmt: skip


def _unsaid_scalar(config: GemmaConfig) -> float:
    """As llama.cpp: only the models of 27B, known by their layers, divide by other than the head's width."""
    if config.num_hidden_layers in (46, 62):
        return config.hidden_size // config.num_attention_heads
    return config.head_dim
