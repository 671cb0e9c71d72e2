"""OpenAI's gpt-oss for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.configs import GGUF_FIELDS, GGUF_MODULES
from inferno.contracts import Architecture, GgufNames

LAYER = "model.layers.{n}"
EXPERT = f"{LAYER}.mlp.experts.{{e}}"

GGUF = GgufNames(
    architecture="gpt-oss",
    fields={
        **GGUF_FIELDS,
        "intermediate_size": "expert_feed_forward_length",
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "sliding_window": "attention.sliding_window",
    },
    modules={
        **{theirs: ours for theirs, ours in GGUF_MODULES.items() if ".ffn_" not in theirs},
        "blk.{n}.post_attention_norm": f"{LAYER}.post_attention_layernorm",
        "blk.{n}.attn_sinks.weight": f"{LAYER}.self_attn.sinks",
        "blk.{n}.ffn_gate_inp": f"{LAYER}.mlp.router",
        "blk.{n}.ffn_gate_exps": f"{EXPERT}.gate_proj",
        "blk.{n}.ffn_up_exps": f"{EXPERT}.up_proj",
        "blk.{n}.ffn_down_exps": f"{EXPERT}.down_proj",
    },
    present={"attention_bias": "blk.0.attn_q.bias"},
    constants={"rope_truncate": False},
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="GptOssForCausalLM",
            config="inferno_gpt_oss.config:GptOssConfig.from_json",
            build="inferno_gpt_oss.model:GptOssForCausalLM",
            gguf=GGUF,
            adapt="inferno_gpt_oss.checkpoint:per_expert",
            stop_tokens=("<|return|>", "<|call|>"),
            checkpoints=(
                "openai/gpt-oss-20b",
                "openai/gpt-oss-120b",
                "openai/gpt-oss-safeguard-20b",
                "openai/gpt-oss-safeguard-120b",
            ),
        )
    ]
