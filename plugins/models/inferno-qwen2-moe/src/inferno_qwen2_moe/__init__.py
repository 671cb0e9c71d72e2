"""Qwen1.5-MoE and Qwen2's mixture of experts for inferno. Imports no torch until a model is
built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.configs import GGUF_EXPERT_FIELDS, GGUF_EXPERT_MODULES, GGUF_FIELDS
from inferno.contracts import Architecture, GgufNames

GGUF = GgufNames(
    architecture="qwen2moe",
    fields={
        **GGUF_FIELDS,
        **GGUF_EXPERT_FIELDS,
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    },
    modules={
        **GGUF_EXPERT_MODULES,
        "blk.{n}.ffn_gate_inp_shexp": "model.layers.{n}.mlp.shared_expert_gate",
        "blk.{n}.ffn_gate_shexp": "model.layers.{n}.mlp.shared_expert.gate_proj",
        "blk.{n}.ffn_up_shexp": "model.layers.{n}.mlp.shared_expert.up_proj",
        "blk.{n}.ffn_down_shexp": "model.layers.{n}.mlp.shared_expert.down_proj",
    },
    constants={"norm_topk_prob": False},  # files do not say; llama.cpp never normalizes
    present={"qkv_bias": "blk.0.attn_q.bias"},
    single_rows=("blk.{n}.ffn_gate_inp_shexp",),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Qwen2MoeForCausalLM",
            config="inferno_qwen2_moe.config:Qwen2MoeConfig.from_json",
            build="inferno_qwen2_moe.model:Qwen2MoeForCausalLM",
            gguf=GGUF,
            stop_tokens=("<|im_end|>", "<|endoftext|>"),
            checkpoints=(
                "Qwen/Qwen1.5-MoE-A2.7B",
                "Qwen/Qwen1.5-MoE-A2.7B-Chat",
                "Qwen/Qwen2-57B-A14B",
                "Qwen/Qwen2-57B-A14B-Instruct",
            ),
        )
    ]
