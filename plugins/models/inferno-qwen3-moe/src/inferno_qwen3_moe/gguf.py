"""How GGUF files of Qwen3's mixtures of experts differ from most. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

QWEN3_MOE = Dialect(
    architecture="qwen3moe",
    present={"attention_bias": "blk.0.attn_q.bias"},
    constants={"norm_topk_prob": True},  # files do not say; llama.cpp normalizes always
)
