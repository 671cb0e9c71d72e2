"""Falcon-H1 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, MAMBA2, Architecture
from inferno_falcon_h1.gguf import FALCON_H1


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="FalconH1ForCausalLM",
            model_types=("falcon_h1",),
            config="inferno_falcon_h1.config:FalconH1Config.from_json",
            build="inferno_falcon_h1.model:FalconH1ForCausalLM",
            adapt="inferno.contracts:with_head",
            dialects={"gguf": FALCON_H1},
            divides={**DECODER, **MAMBA2},
            checkpoints=(
                "tiiuae/Falcon-H1-0.5B-Instruct",
                "tiiuae/Falcon-H1-1.5B-Instruct",
                "tiiuae/Falcon-H1-3B-Instruct",
                "tiiuae/Falcon-H1-7B-Instruct",
                "tiiuae/Falcon-H1-34B-Instruct",
            ),
        )
    ]
