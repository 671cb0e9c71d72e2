"""The GGUF dialect of SmolLM3: Llama's. Files do not say which layers are not rotated; as in
llama.cpp, it is every fourth. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

SMOLLM3 = Dialect(
    architecture="smollm3",
    constants={"model_type": "smollm3"},
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"},
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
)
