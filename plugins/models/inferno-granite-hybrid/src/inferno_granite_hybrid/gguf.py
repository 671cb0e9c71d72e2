"""The GGUF dialect of Granite 3, and of Granite 4 with attention in every layer and no experts.
Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect


def _granite(fields: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp's reader takes `rope.scaling.finetuned` for whether heads are rotated at all."""
    config = dict(fields)
    if not config.pop("rotates", True):
        config["position_embedding_type"] = "nope"
        config.pop("partial_rotary_factor", None)
    return config


def _rotates(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"rotates": False} if config.get("position_embedding_type") == "nope" else {}


GRANITE = Dialect(
    architecture="granite",
    constants={"model_type": "granite"},
    fields={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
        "rotates": "rope.scaling.finetuned",
    },
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"},
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
    config=_granite,
    inverse=_rotates,
)
