"""The GGUF dialects of Mistral and Mixtral: Llama's. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from inferno.contracts import Dialect

_EXPERTS = "model.layers.{n}.block_sparse_moe"


def _mistral(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A file with experts is Mixtral."""
    if not fields.get("num_local_experts"):
        return dict(fields)
    named = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    return {**fields, **named}


MISTRAL = Dialect(
    architecture="llama",
    fields={"num_experts": None, "num_local_experts": "expert_count"},
    modules={
        "blk.{n}.ffn_gate_inp": f"{_EXPERTS}.gate",
        "blk.{n}.ffn_gate_exps": f"{_EXPERTS}.experts.{{e}}.w1",
        "blk.{n}.ffn_up_exps": f"{_EXPERTS}.experts.{{e}}.w3",
        "blk.{n}.ffn_down_exps": f"{_EXPERTS}.experts.{{e}}.w2",
    },
    rotary_pairs={
        "blk.{n}.attn_q": "attention.head_count",
        "blk.{n}.attn_k": "attention.head_count_kv",
    },
    constants={"model_type": "mistral", "sliding_window": None},  # dropped by llama.cpp's converter
    config=_mistral,
    # These files cannot be told from Llama's; Llama's plugin, if installed, reads both.
    priority=-10,
)
MIXTRAL = attrs.evolve(MISTRAL, priority=-20)
