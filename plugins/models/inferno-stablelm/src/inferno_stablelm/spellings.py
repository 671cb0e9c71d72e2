"""Models that StableLM's code computes under other classes. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Spelling


def _epoch(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_attention_heads": fields.get("num_heads"), **fields}


def _orion(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Whole heads are rotated, and all norms are LayerNorms, whatever the field is called."""
    return {**fields, "partial_rotary_factor": 1.0}


EPOCH = Spelling(
    name="StableLMEpochForCausalLM",
    model_types=("stablelm_epoch",),
    fields={"norm_eps": "layer_norm_eps", "rope_pct": "partial_rotary_factor"},
    fixed={"rotary_scaling_factor": 1.0},
    config=_epoch,
    unused=(r".*\.inv_freq",),
)
"""What StableLM's first checkpoints named."""
ORION = Spelling(
    name="OrionForCausalLM",
    model_types=("orion",),
    fields={"rms_norm_eps": "layer_norm_eps"},
    fixed={"attention_bias": False},
    config=_orion,
    unused=(r".*\.inv_freq",),
    checkpoints=("OrionStarAI/Orion-14B-Base", "OrionStarAI/Orion-14B-Chat"),
)
