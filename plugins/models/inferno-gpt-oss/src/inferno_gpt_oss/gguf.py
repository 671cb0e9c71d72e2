"""How GGUF files of gpt-oss differ from most. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"

GPT_OSS = Dialect(
    architecture="gpt-oss",
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
    constants={"rope_truncate": False},
)
