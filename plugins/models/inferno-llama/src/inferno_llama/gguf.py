"""The GGUF dialect of Llama. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

LLAMA = Dialect(
    architecture="llama",
    constants={"model_type": "llama"},
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"},
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
)
