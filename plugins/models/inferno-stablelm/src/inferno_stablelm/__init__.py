"""StableLM and StableLM 2 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.configs import GGUF_FIELDS, GGUF_MODULES
from inferno.contracts import Architecture, GgufNames

LAYER = "model.layers.{n}"

GGUF = GgufNames(
    architecture="stablelm",
    fields={**GGUF_FIELDS, "layer_norm_eps": "attention.layer_norm_epsilon"},
    modules={
        **GGUF_MODULES,
        "blk.{n}.attn_q_norm": f"{LAYER}.self_attn.q_layernorm.norms.{{e}}",
        "blk.{n}.attn_k_norm": f"{LAYER}.self_attn.k_layernorm.norms.{{e}}",
    },
    present={
        "use_qkv_bias": "blk.0.attn_q.bias",
        "qk_layernorm": "blk.0.attn_q_norm.weight",
        # Not the file's own `use_parallel_residual`: it says true of models whose config.json says
        # nothing.
        "has_mlp_norm": "blk.0.ffn_norm.weight",
    },
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="StableLmForCausalLM",
            config="inferno_stablelm.config:StableLmConfig.from_json",
            build="inferno_stablelm.model:StableLmForCausalLM",
            gguf=GGUF,
            stop_tokens=("<|endoftext|>", "<|im_end|>"),
            checkpoints=(
                "stabilityai/stablelm-3b-4e1t",
                "stabilityai/stablelm-zephyr-3b",
                "stabilityai/stable-code-3b",
                "stabilityai/stable-code-instruct-3b",
                "stabilityai/stablelm-2-1_6b",
                "stabilityai/stablelm-2-1_6b-chat",
                "stabilityai/stablelm-2-zephyr-1_6b",
                "stabilityai/stablelm-2-12b",
                "stabilityai/stablelm-2-12b-chat",
            ),
        )
    ]
