"""The GGUF dialect of EXAONE 4. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.configs import typed_layers, windows_of
from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"


def _exaone4(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files without a window (1.2B) have full attention in every layer."""
    config = dict(fields)
    windows = config.pop("windows", None) if config.get("sliding_window") is not None else False
    types = typed_layers(windows, config["num_hidden_layers"])
    return {"sliding_window": None, **config, "layer_types": types}


EXAONE4 = Dialect(
    architecture="exaone4",
    constants={"model_type": "exaone4"},
    fields={
        "sliding_window": "attention.sliding_window",
        "windows": "attention.sliding_window_pattern",
        "layer_types": None,
    },
    modules={
        "blk.{n}.attn_norm": None,
        "blk.{n}.ffn_norm": None,
        "blk.{n}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{n}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
    },
    config=_exaone4,
    inverse=windows_of,
)
