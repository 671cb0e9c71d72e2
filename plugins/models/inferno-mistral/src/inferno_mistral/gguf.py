"""How GGUF files of Mistral differ from most: they are Llama's. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

MISTRAL = Dialect(
    architecture="llama",
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
    constants={"sliding_window": None},  # llama.cpp's converter drops it
    # Nothing in these files tells them from Llama's, and Llama's plugin, if installed, reads both.
    priority=-10,
)
