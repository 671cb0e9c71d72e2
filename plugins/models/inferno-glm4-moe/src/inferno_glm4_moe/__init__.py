"""GLM-4.5 and GLM-4.6 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.configs import GGUF_EXPERT_FIELDS, GGUF_EXPERT_MODULES, GGUF_FIELDS, GGUF_MODULES
from inferno.contracts import Architecture, GgufNames

GGUF = GgufNames(
    architecture="glm4moe",
    fields={
        **GGUF_FIELDS,
        **{name: key for name, key in GGUF_EXPERT_FIELDS.items() if name != "num_experts"},
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "norm_topk_prob": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "scoring_func": "expert_gating_func",
        "num_nextn_predict_layers": "nextn_predict_layers",
    },
    modules={
        **{
            theirs: ours
            for theirs, ours in {**GGUF_MODULES, **GGUF_EXPERT_MODULES}.items()
            if "ffn_norm" not in theirs
        },
        "blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm",
        "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.q_norm",
        "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.k_norm",
        "blk.{n}.exp_probs_b.bias": "model.layers.{n}.mlp.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_shexp": "model.layers.{n}.mlp.shared_experts.gate_proj",
        "blk.{n}.ffn_up_shexp": "model.layers.{n}.mlp.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": "model.layers.{n}.mlp.shared_experts.down_proj",
        "blk.{n}.nextn.eh_proj": "model.layers.{n}.eh_proj",
        "blk.{n}.nextn.embed_tokens": "model.layers.{n}.embed_tokens",
        "blk.{n}.nextn.enorm": "model.layers.{n}.enorm",
        "blk.{n}.nextn.hnorm": "model.layers.{n}.hnorm",
        "blk.{n}.nextn.shared_head_head": "model.layers.{n}.shared_head.head",
        "blk.{n}.nextn.shared_head_norm": "model.layers.{n}.shared_head.norm",
    },
    constants={"counts_predict_layers": True},
    present={"use_qk_norm": "blk.0.attn_q_norm.weight"},
    values={"scoring_func": {1: "softmax", 2: "sigmoid"}},
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Glm4MoeForCausalLM",
            config="inferno_glm4_moe.config:Glm4MoeConfig.from_json",
            build="inferno_glm4_moe.model:Glm4MoeForCausalLM",
            gguf=GGUF,
            stop_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
            checkpoints=("zai-org/GLM-4.5", "zai-org/GLM-4.5-Air", "zai-org/GLM-4.6"),
        )
    ]
