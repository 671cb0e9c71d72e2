"""The GGUF dialect of Kimi-Linear. Files say what a layer is by its number of key/value heads: 0 in
those of delta attention. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs import FULL
from inferno.contracts import Dialect, RowJoin

LINEAR = "linear_attention"
_ATTENTION = "model.layers.{n}.self_attn"
_MOE = "model.layers.{n}.block_sparse_moe"
_CONVOLUTIONS = {f"blk.{{n}}.ssm_conv1d_{x}": f"{_ATTENTION}.{x}_conv1d" for x in "qkv"}
_FILES_ONLY = ("key_length", "value_length", "key_length_mla", "value_length_mla", "kv_heads")


def _kimi(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Widths with `mla` are those of heads, and the others those of the cached vectors: a
    `partial_rotary_factor` derived from these is wrong. Linear layers have as many heads as the
    others, as in llama.cpp."""
    config = {name: value for name, value in fields.items() if name not in _FILES_ONLY}
    layers, kv_heads = fields["num_hidden_layers"], fields["kv_heads"]
    kv_heads = kv_heads if isinstance(kv_heads, list) else [kv_heads] * layers
    return {
        **config,
        "layer_types": [FULL if heads else LINEAR for heads in kv_heads],
        "linear_num_heads": fields["num_attention_heads"],
        "num_key_value_heads": fields["num_attention_heads"],
        "qk_nope_head_dim": fields["key_length_mla"] - fields["qk_rope_head_dim"],
        "v_head_dim": fields["value_length_mla"],
        "partial_rotary_factor": 1.0,
    }


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    from inferno_kimi_linear.config import KimiLinearConfig  # once a model is written

    read = KimiLinearConfig.from_json(config)
    return {
        "kv_heads": [int(kind == FULL) for kind in read.layer_types],
        "key_length": read.kv_lora_rank + read.qk_rope_head_dim,
        "value_length": read.kv_lora_rank,
        "key_length_mla": read.qk_nope_head_dim + read.qk_rope_head_dim,
        "value_length_mla": read.v_head_dim,
        "moe_router_activation_func": "sigmoid",
    }


KIMI_LINEAR = Dialect(
    architecture="kimi-linear",
    constants={"model_type": "kimi_linear", "mla_use_nope": True},
    fields={
        "head_dim": None,
        "num_key_value_heads": None,
        "num_experts_per_tok": None,
        "kv_heads": "attention.head_count_kv",
        "q_lora_rank": "attention.q_lora_rank",
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "key_length": "attention.key_length",
        "value_length": "attention.value_length",
        "key_length_mla": "attention.key_length_mla",
        "value_length_mla": "attention.value_length_mla",
        "linear_head_dim": "kda.head_dim",
        "linear_conv_kernel_dim": "ssm.conv_kernel",
        "num_experts_per_token": "expert_used_count",
        "num_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "moe_router_activation_func": "expert_gating_func",
        "moe_renormalize": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "num_expert_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
    },
    values={"moe_router_activation_func": {1: "softmax", 2: "sigmoid"}},
    modules={
        **_CONVOLUTIONS,
        "blk.{n}.attn_q_a": f"{_ATTENTION}.q_a_proj",
        "blk.{n}.attn_q_a_norm": f"{_ATTENTION}.q_a_layernorm",
        "blk.{n}.attn_q_b": f"{_ATTENTION}.q_b_proj",
        "blk.{n}.attn_kv_a_mqa": f"{_ATTENTION}.kv_a_proj_with_mqa",
        "blk.{n}.attn_kv_a_norm": f"{_ATTENTION}.kv_a_layernorm",
        "blk.{n}.attn_kv_b": f"{_ATTENTION}.kv_b_proj",
        "blk.{n}.ssm_f_a": f"{_ATTENTION}.f_a_proj",
        "blk.{n}.ssm_f_b": f"{_ATTENTION}.f_b_proj",
        "blk.{n}.ssm_g_a": f"{_ATTENTION}.g_a_proj",
        "blk.{n}.ssm_g_b": f"{_ATTENTION}.g_b_proj",
        "blk.{n}.ssm_beta": f"{_ATTENTION}.b_proj",
        "blk.{n}.ssm_a": f"{_ATTENTION}.A_log",
        "blk.{n}.ssm_dt.bias": f"{_ATTENTION}.dt_bias",
        "blk.{n}.ssm_norm": f"{_ATTENTION}.o_norm",
        "blk.{n}.ffn_gate_inp": f"{_MOE}.gate",
        "blk.{n}.exp_probs_b.bias": f"{_MOE}.gate.e_score_correction_bias",
        "blk.{n}.ffn_gate_exps": f"{_MOE}.experts.{{e}}.w1",
        "blk.{n}.ffn_up_exps": f"{_MOE}.experts.{{e}}.w3",
        "blk.{n}.ffn_down_exps": f"{_MOE}.experts.{{e}}.w2",
        "blk.{n}.ffn_gate_shexp": f"{_MOE}.shared_experts.gate_proj",
        "blk.{n}.ffn_up_shexp": f"{_MOE}.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MOE}.shared_experts.down_proj",
    },
    joins={
        f"{_ATTENTION}.kv_b_proj": RowJoin(
            ("blk.{n}.attn_k_b", "blk.{n}.attn_v_b"), transposed=("blk.{n}.attn_k_b",)
        )
    },
    decays=frozenset({"blk.{n}.ssm_a"}),
    axes={
        "blk.{n}.ssm_a": (1, 1, -1, 1),
        **{f"{name}.weight": (-1, 1, 0) for name in _CONVOLUTIONS},
    },
    config=_kimi,
    inverse=_fields,
)
