"""The names of fields and modules in nearly all files from llama.cpp's converters
(`CheckpointFormat.dialect`). An architecture's own dialect has the differences."""

from __future__ import annotations

from inferno.contracts import Dialect, RowSplit

_LAYER = "model.layers.{n}"

DEFAULTS = Dialect(
    fields={
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "max_position_embeddings": "context_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    modules={
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "blk.{n}.attn_norm": f"{_LAYER}.input_layernorm",
        "blk.{n}.attn_q": f"{_LAYER}.self_attn.q_proj",
        "blk.{n}.attn_k": f"{_LAYER}.self_attn.k_proj",
        "blk.{n}.attn_v": f"{_LAYER}.self_attn.v_proj",
        "blk.{n}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
        "blk.{n}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
        "blk.{n}.attn_output": f"{_LAYER}.self_attn.o_proj",
        "blk.{n}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{n}.ffn_gate": f"{_LAYER}.mlp.gate_proj",
        "blk.{n}.ffn_up": f"{_LAYER}.mlp.up_proj",
        "blk.{n}.ffn_down": f"{_LAYER}.mlp.down_proj",
        "blk.{n}.ffn_gate_inp": f"{_LAYER}.mlp.gate",
        "blk.{n}.ffn_gate_exps": f"{_LAYER}.mlp.experts.{{e}}.gate_proj",
        "blk.{n}.ffn_up_exps": f"{_LAYER}.mlp.experts.{{e}}.up_proj",
        "blk.{n}.ffn_down_exps": f"{_LAYER}.mlp.experts.{{e}}.down_proj",
    },
    rows={
        "blk.{n}.attn_qkv": RowSplit(
            {
                f"{_LAYER}.self_attn.q_proj": "num_attention_heads",
                f"{_LAYER}.self_attn.k_proj": "num_key_value_heads",
                f"{_LAYER}.self_attn.v_proj": "num_key_value_heads",
            }
        ),
        "blk.{n}.ffn_gate_up_exps": RowSplit(
            {
                f"{_LAYER}.mlp.experts.{{e}}.gate_proj": 1,
                f"{_LAYER}.mlp.experts.{{e}}.up_proj": 1,
            }
        ),
    },
)
