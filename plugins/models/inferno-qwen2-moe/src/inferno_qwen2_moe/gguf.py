"""The GGUF dialect of Qwen2's mixtures of experts. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect

_MLP = "model.layers.{n}.mlp"


def _qwen2_moe(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add the experts' widths, which the first files (Qwen1.5-MoE-A2.7B) lack."""
    width = fields["intermediate_size"]
    return {
        "moe_intermediate_size": width // fields["num_experts_per_tok"],
        "shared_expert_intermediate_size": width,
        **fields,
    }


QWEN2_MOE = Dialect(
    architecture="qwen2moe",
    fields={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    modules={
        "blk.{n}.ffn_gate_inp_shexp": f"{_MLP}.shared_expert_gate",
        "blk.{n}.ffn_gate_shexp": f"{_MLP}.shared_expert.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_MLP}.shared_expert.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MLP}.shared_expert.down_proj",
    },
    constants={
        "model_type": "qwen2_moe",
        "norm_topk_prob": False,
    },  # not stored; llama.cpp never normalizes
    present={"qkv_bias": "blk.0.attn_q.bias"},
    config=_qwen2_moe,
    squeezed={"blk.{n}.ffn_gate_inp_shexp": 0},
)
