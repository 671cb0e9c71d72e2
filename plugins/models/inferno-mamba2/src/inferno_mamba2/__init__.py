"""Mamba-2 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, MAMBA2, Architecture


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Mamba2ForCausalLM",
            model_types=("mamba2",),
            config="inferno_mamba2.config:Mamba2Config.from_json",
            build="inferno_mamba2.model:Mamba2ForCausalLM",
            divides={**DECODER, **MAMBA2, "embeddings": "vocabulary"},
            checkpoints=("mistralai/Mamba-Codestral-7B-v0.1",),
        )
    ]
