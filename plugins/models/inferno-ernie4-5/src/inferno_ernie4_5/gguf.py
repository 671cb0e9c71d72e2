"""The GGUF dialects of ERNIE 4.5. Its checkpoints rotate adjacent elements, as llama.cpp does, so
that its converter leaves rows in their order. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect


def _ernie4_5(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files without a width of heads mean hidden size / heads, not the default of `config.json`."""
    return {"head_dim": None, **fields}


ERNIE = Dialect(
    architecture="ernie4_5",
    constants={"model_type": "ernie4_5"},
    present={"use_bias": "blk.0.attn_q.bias"},
    config=_ernie4_5,
)
_MLP = "model.layers.{n}.mlp"
ERNIE_MOE = Dialect(
    architecture="ernie4_5-moe",
    constants={"model_type": "ernie4_5_moe"},
    fields={
        "num_experts": None,
        "num_experts_per_tok": None,
        "moe_num_experts": "expert_count",
        "moe_k": "expert_used_count",
        "moe_num_shared_experts": "expert_shared_count",
        "moe_layer_start_index": "leading_dense_block_count",
        "moe_layer_interval": "interleave_moe_layer_step",
    },
    modules={
        "blk.{n}.exp_probs_b.bias": f"{_MLP}.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_shexp": f"{_MLP}.shared_experts.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_MLP}.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MLP}.shared_experts.down_proj",
    },
)
