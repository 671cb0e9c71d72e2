"""The GGUF dialect of StableLM. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect

_ATTENTION = "model.layers.{n}.self_attn"


def _stablelm(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Detect parallel blocks by their single norm: the file's `use_parallel_residual` is also true
    for models whose config.json omits it."""
    config = dict(fields)
    config["use_parallel_residual"] = not config.pop("has_mlp_norm")
    return config


def _orion(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add what files leave out: whole heads are rotated."""
    return {"use_qkv_bias": False, **fields, "partial_rotary_factor": 1.0}


STABLELM = Dialect(
    architecture="stablelm",
    constants={"model_type": "stablelm"},
    fields={"rms_norm_eps": None, "layer_norm_eps": "attention.layer_norm_epsilon"},
    modules={
        "blk.{n}.attn_q_norm": f"{_ATTENTION}.q_layernorm.norms.{{e}}",
        "blk.{n}.attn_k_norm": f"{_ATTENTION}.k_layernorm.norms.{{e}}",
    },
    present={
        "use_qkv_bias": "blk.0.attn_q.bias",
        "qk_layernorm": "blk.0.attn_q_norm.weight",
        "has_mlp_norm": "blk.0.ffn_norm.weight",
    },
    config=_stablelm,
)
ORION = Dialect(
    architecture="orion",
    constants={"model_type": "stablelm"},
    fields=STABLELM.fields,
    config=_orion,
)
