"""The GGUF dialect of Qwen3. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

QWEN3 = Dialect(
    architecture="qwen3",
    constants={"model_type": "qwen3"},
    present={"attention_bias": "blk.0.attn_q.bias"},
)
