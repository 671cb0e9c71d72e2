"""DeepSeek-V2 and V3, and Kimi K2, for inferno. Imports no torch until a model is built."""

from __future__ import annotations

import attrs

from inferno import hookimpl
from inferno.configs import GGUF_FIELDS, GGUF_MODULES
from inferno.contracts import Architecture, GgufNames

GGUF = GgufNames(
    architecture="deepseek2",
    fields={
        **{
            name: key
            for name, key in GGUF_FIELDS.items()
            if name not in ("head_dim", "num_key_value_heads")
        },
        "q_lora_rank": "attention.q_lora_rank",
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        # Of the cached vectors in files whose heads are split (`_mla` is of the heads there), else
        # of the heads.
        "qk_head_dim": "attention.key_length",
        "v_head_dim": "attention.value_length",
        "qk_head_dim_mla": "attention.key_length_mla",
        "v_head_dim_mla": "attention.value_length_mla",
        "moe_intermediate_size": "expert_feed_forward_length",
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "num_experts_per_tok": "expert_used_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "scoring_func": "expert_gating_func",
        "norm_topk_prob": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "yarn_log_multiplier": "rope.scaling.yarn_log_multiplier",
        "attention_temperature_scale": "attention.temperature_scale",
    },
    values={"scoring_func": {1: "softmax", 2: "sigmoid"}},
    constants={"partial_rotary_factor": 1.0},
    present={"split_kv_b": "blk.0.attn_k_b.weight"},
    modules={
        **{
            name: path
            for name, path in GGUF_MODULES.items()
            if name not in ("blk.{n}.attn_k", "blk.{n}.attn_v")
        },
        **{
            f"blk.{{n}}.{theirs}": f"model.layers.{{n}}.{ours}"
            for theirs, ours in {
                "attn_q_a": "self_attn.q_a_proj",
                "attn_q_a_norm": "self_attn.q_a_layernorm",
                "attn_q_b": "self_attn.q_b_proj",
                "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
                "attn_kv_a_norm": "self_attn.kv_a_layernorm",
                "attn_kv_b": "self_attn.kv_b_proj",
                "attn_k_b": "self_attn.k_b_proj.{e}",
                "attn_v_b": "self_attn.v_b_proj.{e}",
                "ffn_gate_inp": "mlp.gate",
                "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
                "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
                "ffn_up_exps": "mlp.experts.{e}.up_proj",
                "ffn_down_exps": "mlp.experts.{e}.down_proj",
                "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
                "ffn_up_shexp": "mlp.shared_experts.up_proj",
                "ffn_down_shexp": "mlp.shared_experts.down_proj",
            }.items()
        },
    },
)
_STOP = ("<｜end▁of▁sentence｜>", "<|im_end|>")
"""DeepSeek's and Kimi's."""


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="DeepseekV2ForCausalLM",
            config="inferno_deepseek.config:DeepseekConfig.of_v2",
            build="inferno_deepseek.model:DeepseekForCausalLM",
            gguf=GGUF,
            stop_tokens=_STOP,
            checkpoints=(
                "deepseek-ai/DeepSeek-V2",
                "deepseek-ai/DeepSeek-V2-Chat",
                "deepseek-ai/DeepSeek-V2-Lite",
                "deepseek-ai/DeepSeek-V2-Lite-Chat",
                "deepseek-ai/DeepSeek-V2.5",
                "deepseek-ai/DeepSeek-Coder-V2-Instruct",
                "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct",
            ),
        ),
        Architecture(
            name="DeepseekV3ForCausalLM",
            config="inferno_deepseek.config:DeepseekConfig.of_v3",
            build="inferno_deepseek.model:DeepseekForCausalLM",
            gguf=attrs.evolve(GGUF, priority=-1),  # one name for both: V2's reads them
            stop_tokens=_STOP,
            checkpoints=(
                "deepseek-ai/DeepSeek-V3",
                "deepseek-ai/DeepSeek-V3-0324",
                "deepseek-ai/DeepSeek-V3.1",
                "deepseek-ai/DeepSeek-R1",
                "deepseek-ai/DeepSeek-R1-0528",
                "moonshotai/Kimi-K2-Instruct",
                "moonshotai/Moonlight-16B-A3B-Instruct",
            ),
        ),
    ]
