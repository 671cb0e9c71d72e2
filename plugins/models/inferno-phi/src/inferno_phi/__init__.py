"""The Phi family (Phi-1, 1.5, 2; Phi-3, 3.5 and 4, dense and of text) for inferno. Imports no torch
until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.configs import GGUF_FIELDS, GGUF_MODULES
from inferno.contracts import Architecture, GgufNames

_LAYER = "model.layers.{n}"
_MODULES = {theirs: ours for theirs, ours in GGUF_MODULES.items() if theirs != "blk.{n}.ffn_gate"}

PHI_2 = GgufNames(
    architecture="phi2",
    fields={**GGUF_FIELDS, "layer_norm_eps": "attention.layer_norm_epsilon"},
    modules={
        **_MODULES,
        "output_norm": "model.final_layernorm",
        "blk.{n}.attn_qkv": f"{_LAYER}.self_attn.qkv_proj",
        "blk.{n}.attn_output": f"{_LAYER}.self_attn.dense",
        "blk.{n}.ffn_up": f"{_LAYER}.mlp.fc1",
        "blk.{n}.ffn_down": f"{_LAYER}.mlp.fc2",
    },
    present={"fused_qkv": "blk.0.attn_qkv.weight"},
)

PHI_3 = GgufNames(
    architecture="phi3",
    fields={**GGUF_FIELDS, "sliding_window": "attention.sliding_window"},
    modules={
        **_MODULES,
        "blk.{n}.attn_qkv": f"{_LAYER}.self_attn.qkv_proj",
        "blk.{n}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
    },
    values={"sliding_window": {0: None}},
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="PhiForCausalLM",
            config="inferno_phi.config:PhiConfig.from_json",
            build="inferno_phi.phi:PhiForCausalLM",
            gguf=PHI_2,
            stop_tokens=("<|endoftext|>",),
            checkpoints=("microsoft/phi-1", "microsoft/phi-1_5", "microsoft/phi-2"),
        ),
        Architecture(
            name="Phi3ForCausalLM",
            config="inferno_phi.config:Phi3Config.from_json",
            build="inferno_phi.phi3:Phi3ForCausalLM",
            gguf=PHI_3,
            stop_tokens=("<|end|>", "<|endoftext|>", "<|im_end|>"),
            checkpoints=(
                "microsoft/Phi-3-mini-4k-instruct",
                "microsoft/Phi-3-mini-128k-instruct",
                "microsoft/Phi-3-medium-4k-instruct",
                "microsoft/Phi-3-medium-128k-instruct",
                "microsoft/Phi-3.5-mini-instruct",
                "microsoft/phi-4",
                "microsoft/Phi-4-mini-instruct",
                "microsoft/Phi-4-mini-reasoning",
                "microsoft/Phi-4-reasoning",
                "microsoft/Phi-4-reasoning-plus",
            ),
        ),
    ]
