"""How GGUF files of GLM-4 differ from most. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

_LAYER = "model.layers.{n}"
_HAS_BIAS = {"attention_bias": "blk.0.attn_q.bias"}

GLM = Dialect(
    architecture="chatglm",
    # Most were made from the first checkpoints, as glm-4-9b-chat was published before transformers
    # knew it.
    modules={
        "blk.{n}.attn_qkv": f"{_LAYER}.self_attn.qkv_proj",
        "blk.{n}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
    },
    present={
        **_HAS_BIAS,
        "fused_qkv": "blk.0.attn_qkv.weight",
        "fused_qkv_bias": "blk.0.attn_qkv.bias",
    },
)
GLM4 = Dialect(
    architecture="glm4",
    modules={
        "blk.{n}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
        "blk.{n}.post_attention_norm": f"{_LAYER}.post_self_attn_layernorm",
        "blk.{n}.post_ffw_norm": f"{_LAYER}.post_mlp_layernorm",
    },
    present=_HAS_BIAS,
)
