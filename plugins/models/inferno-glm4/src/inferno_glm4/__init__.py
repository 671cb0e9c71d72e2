"""GLM-4 and GLM-4-0414 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.configs import GGUF_FIELDS, GGUF_MODULES
from inferno.contracts import Architecture, GgufNames

_MODULES = {
    **{theirs: ours for theirs, ours in GGUF_MODULES.items() if theirs != "blk.{n}.ffn_gate"},
    "blk.{n}.ffn_up": "model.layers.{n}.mlp.gate_up_proj",
}
_HAS_BIAS = {"attention_bias": "blk.0.attn_q.bias"}
_STOP_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")

CHATGLM = GgufNames(
    architecture="chatglm",
    fields=GGUF_FIELDS,
    # Most were made from the first checkpoints, as glm-4-9b-chat was published before transformers
    # knew it.
    modules={**_MODULES, "blk.{n}.attn_qkv": "model.layers.{n}.self_attn.qkv_proj"},
    present={
        **_HAS_BIAS,
        "fused_qkv": "blk.0.attn_qkv.weight",
        "fused_qkv_bias": "blk.0.attn_qkv.bias",
    },
)
GLM4 = GgufNames(
    architecture="glm4",
    fields=GGUF_FIELDS,
    modules={
        **_MODULES,
        "blk.{n}.post_attention_norm": "model.layers.{n}.post_self_attn_layernorm",
        "blk.{n}.post_ffw_norm": "model.layers.{n}.post_mlp_layernorm",
    },
    present=_HAS_BIAS,
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Glm4ForCausalLM",
            config="inferno_glm4.config:Glm4Config.from_json",
            build="inferno_glm4.model:Glm4ForCausalLM",
            gguf=GLM4,
            stop_tokens=_STOP_TOKENS,
            checkpoints=(
                "zai-org/GLM-4-9B-0414",
                "zai-org/GLM-4-32B-0414",
                "zai-org/GLM-4-32B-Base-0414",
                "zai-org/GLM-Z1-9B-0414",
                "zai-org/GLM-Z1-32B-0414",
                "zai-org/GLM-Z1-Rumination-32B-0414",
            ),
        ),
        Architecture(
            name="GlmForCausalLM",
            config="inferno_glm4.config:Glm4Config.from_json",
            build="inferno_glm4.model:GlmForCausalLM",
            gguf=CHATGLM,
            stop_tokens=_STOP_TOKENS,
            checkpoints=(
                "zai-org/glm-4-9b-hf",
                "zai-org/glm-4-9b-chat-hf",
                "zai-org/glm-4-9b-chat-1m-hf",
                "zai-org/glm-edge-1.5b-chat",
                "zai-org/glm-edge-4b-chat",
            ),
        ),
    ]
