"""The GGUF dialect of gpt-oss. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"


def _gpt_oss(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Set `truncate`, which files lack, to false, as in all published models."""
    config = dict(fields)
    if scaling := config.get("rope_scaling"):
        config["rope_scaling"] = {**scaling, "truncate": False}
    return config


GPT_OSS = Dialect(
    architecture="gpt-oss",
    constants={"model_type": "gpt_oss"},
    fields={
        "intermediate_size": "expert_feed_forward_length",
        "moe_intermediate_size": None,
        "num_experts": None,
        "num_local_experts": "expert_count",
        "sliding_window": "attention.sliding_window",
    },
    modules={
        "blk.{n}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{n}.attn_sinks.weight": f"{_LAYER}.self_attn.sinks",
        "blk.{n}.ffn_gate_inp": f"{_LAYER}.mlp.router",
    },
    present={"attention_bias": "blk.0.attn_q.bias"},
    config=_gpt_oss,
)
