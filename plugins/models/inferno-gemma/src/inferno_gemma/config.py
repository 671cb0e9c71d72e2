"""What the three generations of Gemma read of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import SLIDING, RopeConfig, WindowedConfig, check_known, check_positive
from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError


@frozen(kw_only=True)
class GemmaConfig(WindowedConfig):
    activations = (
        "gelu",
        "gelu_pytorch_tanh",
    )  # the first configs say "gelu" and mean the approximation by tanh

    head_dim: int = 256
    max_position_embeddings: int = 8192
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256.0
    """Scores are divided by its square root. 0: GGUF files do not say it, see `_unsaid_scalar`."""
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    sliding_window_pattern: int = 1
    """Every so many layers one attends to the whole context."""
    local_rope: RopeConfig = RopeConfig()
    """Of the layers with a window. `rope` is the others'."""
    sandwich: bool = False
    """Whether a norm follows attention and MLP, too."""
    head_norms: bool = False
    """Whether every query and key head is normed."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "hidden_activation", None, "gelu_pytorch_tanh")
        check_known(config, "use_bidirectional_attention", None, False)
        read = super().from_json(config)
        check_positive(sliding_window_pattern=read.sliding_window_pattern)
        unsaid = read.query_pre_attn_scalar == 0
        for name in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")[
            unsaid:
        ]:
            if (number := getattr(read, name)) is not None and number <= 0:
                raise CheckpointError(f"config.json: {name} is {number}", "It must be above 0.")
        scalar = read.query_pre_attn_scalar or _unsaid_scalar(read)
        return attrs.evolve(read, local_rope=read.rope, query_pre_attn_scalar=scalar)

    def slides(self, layer: int) -> bool:
        return (layer + 1) % max(1, self.sliding_window_pattern) > 0

    def attention_spec(self, layer: int) -> AttentionSpec:
        scale = self.query_pre_attn_scalar**-0.5
        return attrs.evolve(
            super().attention_spec(layer), scale=scale, soft_cap=self.attn_logit_softcapping
        )


def gemma(config: Mapping[str, Any]) -> GemmaConfig:
    """arXiv:2403.08295."""
    read = GemmaConfig.from_json({**config, **_GEMMA})
    return attrs.evolve(read, query_pre_attn_scalar=read.head_dim)


def gemma2(config: Mapping[str, Any]) -> GemmaConfig:
    """arXiv:2408.00118."""
    return attrs.evolve(GemmaConfig.from_json({**_GEMMA2, **config}), sandwich=True)


def gemma3(config: Mapping[str, Any]) -> GemmaConfig:
    """arXiv:2503.19786. transformers does not compute a soft cap of the scores here, though its
    config has the field."""
    check_known(config, "attn_logit_softcapping", None)
    stretched = config.get("rope_parameters")
    local = (
        stretched.get(SLIDING) if isinstance(stretched, Mapping) else None
    )  # what is no object, `rope` refuses
    local_rope = RopeConfig.from_json(
        {"rope_parameters": local, "rope_theta": config.get("rope_local_base_freq", 1e4)}
    )
    unwindowed = (
        config.get("query_pre_attn_scalar") == 0 and "sliding_window" not in config
    )  # a GGUF file's way to say it
    read = GemmaConfig.from_json(
        {**_GEMMA3, **config, **({"sliding_window_pattern": 1} if unwindowed else {})}
    )
    local_rope.check_width(read.head_dim)
    return attrs.evolve(read, local_rope=local_rope, sandwich=True, head_norms=True)


def gemma3_text(config: Mapping[str, Any]) -> GemmaConfig:
    """Of a model that also sees: what its language model is."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise CheckpointError(
            "config.json: text_config is missing", "It must hold the language model's config."
        )
    return gemma3({**text, "tie_word_embeddings": config.get("tie_word_embeddings", True)})


_GEMMA: Mapping[str, Any] = dict.fromkeys(
    (
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "sliding_window",
        "layer_types",
        "query_pre_attn_scalar",
    )
)
"""What later generations' configs say. Gemma 1 computes none of it."""
_GEMMA2: Mapping[str, Any] = {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
}
_GEMMA3: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1e6,
}
"""transformers' own defaults: published configs leave such fields out."""


def _unsaid_scalar(config: GemmaConfig) -> float:
    """As llama.cpp: only the models of 27B, known by their layers, divide by other than the head's
    width."""
    if config.num_hidden_layers in (46, 62):
        return config.hidden_size // config.num_attention_heads
    return config.head_dim
