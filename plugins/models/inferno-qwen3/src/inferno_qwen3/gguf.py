"""How GGUF files of Qwen3 differ from most. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

QWEN3 = Dialect(architecture="qwen3", present={"attention_bias": "blk.0.attn_q.bias"})
