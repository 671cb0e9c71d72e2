"""The GGUF dialect of Gemma 1, 2 and 3. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"

# llama.cpp multiplies by the stored weight: its converters add the 1 of every norm.
_NORMS = ("output_norm", "blk.{n}.attn_norm", "blk.{n}.ffn_norm")
_NORMS_2 = (*_NORMS, "blk.{n}.post_attention_norm", "blk.{n}.post_ffw_norm")
_NORMS_3 = (*_NORMS_2, "blk.{n}.attn_q_norm", "blk.{n}.attn_k_norm")

_MODULES_2 = {
    "blk.{n}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{n}.ffn_norm": f"{_LAYER}.pre_feedforward_layernorm",
    "blk.{n}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
}


def _gemma2(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Set `query_pre_attn_scalar`, which files lack. As in llama.cpp: the head width, except in the
    27B models, known by their number of layers."""
    is_27b = fields["num_hidden_layers"] in (46, 62)
    width = fields["hidden_size"] // fields["num_attention_heads"]
    return {**fields, "query_pre_attn_scalar": width if is_27b else fields["head_dim"]}


def _gemma3(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files without a window have full attention in every layer (rnj-1)."""
    config = _gemma2(fields)
    if "sliding_window" not in config:
        config |= {"sliding_window": None, "sliding_window_pattern": 1}
    return config


GEMMA = Dialect(
    architecture="gemma",
    constants={"model_type": "gemma"},
    added=dict.fromkeys(_NORMS, 1.0),
)
GEMMA2 = Dialect(
    architecture="gemma2",
    constants={"model_type": "gemma2"},
    fields={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": "attention.sliding_window",
    },
    modules=_MODULES_2,
    added=dict.fromkeys(_NORMS_2, 1.0),
    config=_gemma2,
)
GEMMA3 = Dialect(
    architecture="gemma3",
    constants={"model_type": "gemma3_text"},
    fields={
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        "rope_local_base_freq": "rope.freq_base_swa",
    },
    modules=_MODULES_2,
    added=dict.fromkeys(_NORMS_3, 1.0),
    config=_gemma3,
)
