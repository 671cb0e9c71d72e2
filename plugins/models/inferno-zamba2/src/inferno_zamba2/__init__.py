"""Zamba2 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Zamba2ForCausalLM",
            model_types=("zamba2",),
            config="inferno_zamba2.config:Zamba2Config.from_json",
            build="inferno_zamba2.model:Zamba2ForCausalLM",
            adapt="inferno.contracts:with_head",
            checkpoints=(
                "Zyphra/Zamba2-1.2B",
                "Zyphra/Zamba2-1.2B-instruct",
                "Zyphra/Zamba2-2.7B",
                "Zyphra/Zamba2-2.7B-instruct",
                "Zyphra/Zamba2-7B",
                "Zyphra/Zamba2-7B-Instruct",
            ),
        )
    ]
