"""The GGUF dialects of Hunyuan. Files have the stretched rotary base. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

HUNYUAN = Dialect(
    architecture="hunyuan-dense",
    constants={"model_type": "hunyuan_v1_dense"},
    present={"attention_bias": "blk.0.attn_q.bias"},
)
_MLP = "model.layers.{n}.mlp"
HUNYUAN_MOE = Dialect(
    architecture="hunyuan-moe",
    constants={"model_type": "hunyuan_v1_moe"},
    fields={
        "num_experts_per_tok": None,
        "moe_topk": "expert_used_count",
        "num_shared_expert": "expert_shared_count",
    },
    modules={
        "blk.{n}.ffn_gate_shexp": f"{_MLP}.shared_experts.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_MLP}.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MLP}.shared_experts.down_proj",
    },
    present={"attention_bias": "blk.0.attn_q.bias"},
)
