"""The GGUF dialect of GLM-4. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"


def _glm(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Most files come from the first checkpoints, published before transformers supported GLM-4: q,
    k and v in one matrix with a bias, and no head width."""
    config = dict(fields)
    config["attention_bias"] |= config.pop("fused_bias")
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


GLM = Dialect(
    architecture="chatglm",
    constants={"model_type": "glm"},
    modules={"blk.{n}.ffn_up": f"{_LAYER}.mlp.gate_up_proj"},
    present={"attention_bias": "blk.0.attn_q.bias", "fused_bias": "blk.0.attn_qkv.bias"},
    config=_glm,
)
GLM4 = Dialect(
    architecture="glm4",
    constants={"model_type": "glm4"},
    modules={
        "blk.{n}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
        "blk.{n}.post_attention_norm": f"{_LAYER}.post_self_attn_layernorm",
        "blk.{n}.post_ffw_norm": f"{_LAYER}.post_mlp_layernorm",
    },
    present={"attention_bias": "blk.0.attn_q.bias"},
)
