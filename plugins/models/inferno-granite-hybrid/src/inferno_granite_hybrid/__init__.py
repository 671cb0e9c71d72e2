"""Granite 4 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="GraniteMoeHybridForCausalLM",
            model_types=("granitemoehybrid",),
            config="inferno_granite_hybrid.config:GraniteHybridConfig.from_json",
            build="inferno_granite_hybrid.model:GraniteMoeHybridForCausalLM",
            adapt="inferno_granite_hybrid.checkpoint:per_expert",
            stop_tokens=("<|end_of_text|>",),
            checkpoints=(
                "ibm-granite/granite-4.0-h-350m",
                "ibm-granite/granite-4.0-h-1b",
                "ibm-granite/granite-4.0-h-micro",
                "ibm-granite/granite-4.0-h-tiny",
                "ibm-granite/granite-4.0-h-small",
                "ibm-granite/granite-4.0-350m",
                "ibm-granite/granite-4.0-1b",
                "ibm-granite/granite-4.0-micro",
            ),
        )
    ]
