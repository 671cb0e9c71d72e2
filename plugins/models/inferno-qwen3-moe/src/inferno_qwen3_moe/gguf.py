"""The GGUF dialects of Qwen3's mixtures of experts, and of Qwen3-VL's encoder. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.configs.encoder_files import SECTIONS, deep_encoder, with_sections
from inferno.contracts import Dialect


def _qwen3_moe(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add the experts' width, which the first files lack."""
    width = fields["intermediate_size"] // fields["num_experts_per_tok"]
    return {"moe_intermediate_size": width, **fields}


def _qwen3_vl_moe(fields: Mapping[str, Any]) -> dict[str, Any]:
    return with_sections(_qwen3_moe(fields))


_PLAIN = Dialect(
    architecture="qwen3moe",
    present={"attention_bias": "blk.0.attn_q.bias"},
    constants={
        "model_type": "qwen3_moe",
        "norm_topk_prob": True,
    },  # not stored; llama.cpp always normalizes
    config=_qwen3_moe,
)
QWEN3_MOE = attrs.evolve(
    _PLAIN,
    # The text model of Qwen3-VL's mixtures.
    variants=(
        attrs.evolve(_PLAIN, architecture="qwen3vlmoe", **{**SECTIONS, "config": _qwen3_vl_moe}),
    ),
)
QWEN3_VL_MOE = deep_encoder("qwen3vl_merger", ("qwen3vlmoe",), "qwen3_vl_moe")
