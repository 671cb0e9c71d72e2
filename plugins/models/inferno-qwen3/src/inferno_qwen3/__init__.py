"""Qwen3 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Qwen3ForCausalLM",
            config="inferno_qwen3.config:Qwen3Config.from_json",
            build="inferno_qwen3.model:Qwen3ForCausalLM",
        )
    ]
