"""The Phi family (Phi-1, 1.5, 2; Phi-3, 3.5 and 4, dense text models) for inferno. Imports no torch
until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_phi.gguf import PHI, PHI3


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="PhiForCausalLM",
            model_types=("phi",),
            config="inferno_phi.config:PhiConfig.from_json",
            build="inferno_phi.phi:PhiForCausalLM",
            divides={**DECODER, "dense": "from heads", "fc1": "inner", "fc2": "from inner"},
            dialects={"gguf": PHI},
            stop_tokens=("<|endoftext|>",),
            checkpoints=("microsoft/phi-1", "microsoft/phi-1_5", "microsoft/phi-2"),
        ),
        Architecture(
            name="Phi3ForCausalLM",
            model_types=("phi3",),
            config="inferno_phi.config:Phi3Config.from_json",
            build="inferno_phi.phi3:Phi3ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": PHI3},
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
