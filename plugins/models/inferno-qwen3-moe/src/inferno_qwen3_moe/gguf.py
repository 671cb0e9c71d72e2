"""The GGUF dialect of Qwen3's mixtures of experts. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect


def _qwen3_moe(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add the experts' width, which the first files lack."""
    width = fields["intermediate_size"] // fields["num_experts_per_tok"]
    return {"moe_intermediate_size": width, **fields}


QWEN3_MOE = Dialect(
    architecture="qwen3moe",
    present={"attention_bias": "blk.0.attn_q.bias"},
    constants={
        "model_type": "qwen3_moe",
        "norm_topk_prob": True,
    },  # not stored; llama.cpp always normalizes
    config=_qwen3_moe,
)
