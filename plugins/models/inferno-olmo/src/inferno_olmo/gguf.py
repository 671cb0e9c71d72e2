"""The GGUF dialects of OLMo 2, OLMo 3 and OLMoE. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs import FULL, SLIDING, typed_layers, windows_of
from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"


def _olmo(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A file with a window is OLMo 3: llama.cpp has one name for both."""
    config = dict(fields)
    windows = config.pop("windows", None)
    if config.get("sliding_window") is None:
        return {**config, "model_type": "olmo2"}
    plain = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    rope = {FULL: {**plain, **config.pop("rope_scaling", {})}, SLIDING: plain}
    return {
        **config,
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "layer_types": typed_layers(windows, config["num_hidden_layers"]),
        "rope_parameters": rope,
    }


OLMO = Dialect(
    architecture="olmo2",
    fields={
        "sliding_window": "attention.sliding_window",
        "windows": "attention.sliding_window_pattern",
    },
    modules={
        "blk.{n}.attn_norm": None,
        "blk.{n}.ffn_norm": None,
        "blk.{n}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{n}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
    },
    present={"attention_bias": "blk.0.attn_q.bias"},
    config=_olmo,
    inverse=windows_of,
)
OLMOE = Dialect(
    architecture="olmoe",
    fields={"moe_intermediate_size": None},
    constants={"model_type": "olmoe", "norm_topk_prob": False},  # not stored, and never normalized
    present={"attention_bias": "blk.0.attn_q.bias"},
)
