"""Qwen1.5-MoE and Qwen2's mixture of experts for inferno. Imports no torch until a model is
built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_qwen2_moe.gguf import QWEN2_MOE


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Qwen2MoeForCausalLM",
            model_types=("qwen2_moe",),
            config="inferno_qwen2_moe.config:Qwen2MoeConfig.from_json",
            build="inferno_qwen2_moe.model:Qwen2MoeForCausalLM",
            divides=DECODER,
            dialects={"gguf": QWEN2_MOE},
            stop_tokens=("<|im_end|>", "<|endoftext|>"),
            checkpoints=(
                "Qwen/Qwen1.5-MoE-A2.7B",
                "Qwen/Qwen1.5-MoE-A2.7B-Chat",
                "Qwen/Qwen2-57B-A14B",
                "Qwen/Qwen2-57B-A14B-Instruct",
            ),
        )
    ]
