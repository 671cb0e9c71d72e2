"""How GGUF files of Qwen2's mixtures of experts differ from most. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

_MLP = "model.layers.{n}.mlp"

QWEN2_MOE = Dialect(
    architecture="qwen2moe",
    fields={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    modules={
        "blk.{n}.ffn_gate_inp_shexp": f"{_MLP}.shared_expert_gate",
        "blk.{n}.ffn_gate_shexp": f"{_MLP}.shared_expert.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_MLP}.shared_expert.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MLP}.shared_expert.down_proj",
    },
    constants={"norm_topk_prob": False},  # files do not say; llama.cpp never normalizes
    present={"qkv_bias": "blk.0.attn_q.bias"},
    single_rows=("blk.{n}.ffn_gate_inp_shexp",),
)
