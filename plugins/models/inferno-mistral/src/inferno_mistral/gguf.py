"""The GGUF dialect of Mistral: Llama's. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

MISTRAL = Dialect(
    architecture="llama",
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
    constants={"model_type": "mistral", "sliding_window": None},  # dropped by llama.cpp's converter
    # These files cannot be told from Llama's; Llama's plugin, if installed, reads both.
    priority=-10,
)
