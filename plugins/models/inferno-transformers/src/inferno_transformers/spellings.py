"""Classes that transformers has under another name and with other fields. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Spelling


def _falcon(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Falcon-40B's model type said what a field does now: separate norms for attention and MLP."""
    config = {name: value for name, value in fields.items() if value is not None}
    newer = fields.get("model_type") == "RefinedWeb"
    return {
        "new_decoder_architecture": newer,
        "multi_query": not newer,
        "parallel_attn": True,
        "num_kv_heads": fields.get("num_attention_heads") if newer else 1,
        **config,
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
    }


FALCON = Spelling(
    name="RWForCausalLM",
    aliases=("RWModel",),
    model_types=("RefinedWeb", "RefinedWebModel"),
    fields={
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_head_kv": "num_kv_heads",
        "n_embed": "hidden_size",
    },
    config=_falcon,
)
