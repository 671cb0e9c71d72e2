"""The GGUF dialect of Llama. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect

_EXPERTS = "model.layers.{n}.block_sparse_moe"


def _llama(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A file with experts is Mixtral: llama.cpp has one name for both."""
    if not fields.get("num_experts"):
        return dict(fields)
    named = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    return {**fields, **named}


LLAMA = Dialect(
    architecture="llama",
    constants={"model_type": "llama"},
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"},
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
    config=_llama,
)
