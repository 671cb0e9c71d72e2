"""Models that StableLM's code computes under other classes. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Spelling
from inferno.errors import UnsupportedError


def _epoch(fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("rotary_scaling_factor", 1.0) != 1.0:
        raise UnsupportedError(
            f"rotary_scaling_factor {fields['rotary_scaling_factor']} of StableLMEpochForCausalLM "
            "cannot run here",
            "Published models have 1.0.",
        )
    return {"num_attention_heads": fields.get("num_heads"), **fields}


def _orion(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Whole heads are rotated, and all norms are LayerNorms, whatever the field is called."""
    if fields.get("attention_bias"):
        raise UnsupportedError("Orion with attention_bias cannot run here", "Orion-14B has none.")
    return {**fields, "partial_rotary_factor": 1.0}


EPOCH = Spelling(
    name="StableLMEpochForCausalLM",
    model_types=("stablelm_epoch",),
    fields={"norm_eps": "layer_norm_eps", "rope_pct": "partial_rotary_factor"},
    config=_epoch,
    unused=(r".*\.inv_freq",),
)
"""What StableLM's first checkpoints named."""
ORION = Spelling(
    name="OrionForCausalLM",
    model_types=("orion",),
    fields={"rms_norm_eps": "layer_norm_eps"},
    config=_orion,
    unused=(r".*\.inv_freq",),
    checkpoints=("OrionStarAI/Orion-14B-Base", "OrionStarAI/Orion-14B-Chat"),
)
