"""Nemotron-H and Nemotron 3 Nano for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, MAMBA2, Architecture
from inferno_nemotron_h.gguf import GGUF


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="NemotronHForCausalLM",
            model_types=("nemotron_h",),
            config="inferno_nemotron_h.config:NemotronHConfig.from_json",
            build="inferno_nemotron_h.model:NemotronHForCausalLM",
            adapt="inferno_nemotron_h.checkpoint:published_names",
            dialects={"gguf": GGUF},
            divides={**DECODER, **MAMBA2, "embeddings": "vocabulary"},
            checkpoints=(
                "nvidia/Nemotron-H-4B-Instruct-128K",
                "nvidia/Nemotron-H-8B-Reasoning-128K",
                "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
                "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            ),
        )
    ]
