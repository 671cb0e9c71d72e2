"""The GGUF dialect of Seed-OSS. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect


def _seed_oss(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Files without a width of heads mean hidden size / heads, not the default of `config.json`."""
    return {"head_dim": None, **fields}


SEED_OSS = Dialect(
    architecture="seed_oss",
    constants={"model_type": "seed_oss"},
    modules={
        "blk.{n}.ffn_norm": None,
        "blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm",
    },
    present={
        "attention_bias": "blk.0.attn_q.bias",
        "attention_out_bias": "blk.0.attn_output.bias",
        "mlp_bias": "blk.0.ffn_down.bias",
    },
    config=_seed_oss,
)
