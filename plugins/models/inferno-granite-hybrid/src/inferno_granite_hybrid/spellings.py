"""Models that Granite's code computes under other classes: those whose embeddings, residuals and
logits are scaled by factors of the width. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inferno.contracts import Spelling
from inferno.errors import CheckpointError, UnsupportedError


def _minicpm(fields: Mapping[str, Any]) -> dict[str, Any]:
    for name, what in (("num_experts", "experts"), ("sparse_config", "sparse attention")):
        if fields.get(name):
            raise UnsupportedError(
                f"MiniCPM with {what} ({name}) cannot run here",
                "The dense models run; of MiniCPM4, without sparse_config.",
            )
    layers, depth = _factor(fields, "num_hidden_layers"), _factor(fields, "scale_depth", 1)
    width, base = _factor(fields, "hidden_size"), _factor(fields, "dim_model_base", 1)
    return {
        "tie_word_embeddings": True,
        **fields,
        "embedding_multiplier": _factor(fields, "scale_emb", 1),
        "residual_multiplier": depth / math.sqrt(layers),
        "logits_scaling": width / base,
        "attention_multiplier": _scale(fields),
    }


def _teleflm(fields: Mapping[str, Any]) -> dict[str, Any]:
    config = {**fields, "residual_multiplier": 1.0, "attention_multiplier": _scale(fields)}
    if fields.get("use_mup"):
        config["embedding_multiplier"] = _factor(fields, "input_mult")
        config["logits_scaling"] = _factor(fields, "mup_scale_factor") / _factor(
            fields, "output_mult"
        )
    return config


def _scale(fields: Mapping[str, Any]) -> float:
    """Scores are scaled as usual: Granite's config says by what."""
    width = fields.get("head_dim")
    if width is None:
        width = _factor(fields, "hidden_size") / _factor(fields, "num_attention_heads")
    return float(width**-0.5)


def _factor(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    number = fields.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
        raise CheckpointError(
            f"config.json: {name} is {number!r}", "It must be a number greater than 0."
        )
    return float(number)


MINICPM = Spelling(
    name="MiniCPMForCausalLM",
    model_types=("minicpm",),
    config=_minicpm,
    checkpoints=(
        "openbmb/MiniCPM-1B-sft-bf16",
        "openbmb/MiniCPM-2B-sft-bf16",
        "openbmb/MiniCPM-2B-dpo-bf16",
        "openbmb/MiniCPM4-0.5B",
        "openbmb/MiniCPM4-8B",
    ),
)
TELEFLM = Spelling(
    name="TeleFLMForCausalLM",
    model_types=("TeleFLM",),
    config=_teleflm,
    checkpoints=("CofeAI/FLM-2-52B-Instruct-2407",),
)
