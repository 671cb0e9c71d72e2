"""What most decoders' GGUF files call the fields and modules of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

GGUF_FIELDS: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""What most decoders' GGUF files call the fields of `config.json`
(`contracts.GgufNames.fields`)."""

GGUF_MODULES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    **{
        f"blk.{{n}}.{theirs}": f"model.layers.{{n}}.{ours}"
        for theirs, ours in {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }.items()
    },
}
"""What most decoders' GGUF files call the modules (`contracts.GgufNames.modules`)."""

GGUF_EXPERT_FIELDS: Mapping[str, str] = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
"""What GGUF files of mixtures of experts call theirs, beside `GGUF_FIELDS`."""

GGUF_EXPERT_MODULES: Mapping[str, str] = {
    **{theirs: ours for theirs, ours in GGUF_MODULES.items() if ".mlp." not in ours},
    "blk.{n}.ffn_gate_inp": "model.layers.{n}.mlp.gate",
    **{
        f"blk.{{n}}.ffn_{name}_exps": f"model.layers.{{n}}.mlp.experts.{{e}}.{name}_proj"
        for name in ("gate", "up", "down")
    },
}
"""The modules of decoders whose every layer has routed experts; with `GGUF_MODULES` those of mixed
ones."""
