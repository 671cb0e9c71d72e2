"""How GGUF files of DeepSeek-V2 and V3 differ from most. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"

DEEPSEEK = Dialect(
    architecture="deepseek2",
    fields={
        "head_dim": None,
        "num_key_value_heads": None,
        "num_experts": None,
        "q_lora_rank": "attention.q_lora_rank",
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        # Of the cached vectors in files whose heads are split (`_mla` is of the heads there), else
        # of the heads.
        "qk_head_dim": "attention.key_length",
        "v_head_dim": "attention.value_length",
        "qk_head_dim_mla": "attention.key_length_mla",
        "v_head_dim_mla": "attention.value_length_mla",
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
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
        "blk.{n}.attn_q_a": f"{_LAYER}.self_attn.q_a_proj",
        "blk.{n}.attn_q_a_norm": f"{_LAYER}.self_attn.q_a_layernorm",
        "blk.{n}.attn_q_b": f"{_LAYER}.self_attn.q_b_proj",
        "blk.{n}.attn_kv_a_mqa": f"{_LAYER}.self_attn.kv_a_proj_with_mqa",
        "blk.{n}.attn_kv_a_norm": f"{_LAYER}.self_attn.kv_a_layernorm",
        "blk.{n}.attn_kv_b": f"{_LAYER}.self_attn.kv_b_proj",
        "blk.{n}.attn_k_b": f"{_LAYER}.self_attn.k_b_proj.{{e}}",
        "blk.{n}.attn_v_b": f"{_LAYER}.self_attn.v_b_proj.{{e}}",
        "blk.{n}.exp_probs_b.bias": f"{_LAYER}.mlp.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_shexp": f"{_LAYER}.mlp.shared_experts.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_LAYER}.mlp.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_LAYER}.mlp.shared_experts.down_proj",
    },
)
