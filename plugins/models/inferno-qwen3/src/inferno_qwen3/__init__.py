"""Qwen3 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture
from inferno_qwen3.gguf import QWEN3


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Qwen3ForCausalLM",
            config="inferno_qwen3.config:Qwen3Config.from_json",
            build="inferno_qwen3.model:Qwen3ForCausalLM",
            dialects={"gguf": QWEN3},
            stop_tokens=("<|im_end|>",),
            checkpoints=(
                "Qwen/Qwen3-0.6B",
                "Qwen/Qwen3-1.7B",
                "Qwen/Qwen3-4B",
                "Qwen/Qwen3-8B",
                "Qwen/Qwen3-14B",
                "Qwen/Qwen3-32B",
                "Qwen/Qwen3-4B-Instruct-2507",
                "Qwen/Qwen3-4B-Thinking-2507",
                "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
                "Qwen/Qwen3-Reranker-0.6B",
            ),
        )
    ]
