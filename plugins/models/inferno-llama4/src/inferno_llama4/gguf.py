"""The GGUF dialect of Llama 4's text model. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}.feed_forward"
_NOT_NORMALIZED = 128
"""llama.cpp tells by the number of experts that queries and keys are not normalized."""


def _llama4(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add what files do not store, and llama.cpp assumes."""
    return {**fields, "use_qk_norm": fields.get("num_local_experts") != _NOT_NORMALIZED}


LLAMA4 = Dialect(
    architecture="llama4",
    constants={
        "model_type": "llama4_text",
        "attention_chunk_size": 8192,
        "no_rope_layer_interval": 4,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
    fields={
        "intermediate_size": "expert_feed_forward_length",
        "intermediate_size_mlp": "feed_forward_length",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
        "moe_intermediate_size": None,
        "num_experts": None,
        "num_local_experts": "expert_count",
    },
    present={"attention_bias": "blk.0.attn_q.bias"},
    modules={
        "blk.{n}.ffn_gate": f"{_LAYER}.gate_proj",
        "blk.{n}.ffn_up": f"{_LAYER}.up_proj",
        "blk.{n}.ffn_down": f"{_LAYER}.down_proj",
        "blk.{n}.ffn_gate_inp": f"{_LAYER}.router",
        "blk.{n}.ffn_gate_exps": f"{_LAYER}.experts.{{e}}.gate_proj",
        "blk.{n}.ffn_up_exps": f"{_LAYER}.experts.{{e}}.up_proj",
        "blk.{n}.ffn_down_exps": f"{_LAYER}.experts.{{e}}.down_proj",
        "blk.{n}.ffn_gate_shexp": f"{_LAYER}.shared_expert.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_LAYER}.shared_expert.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_LAYER}.shared_expert.down_proj",
    },
    config=_llama4,
)
