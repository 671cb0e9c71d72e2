"""Kimi-Linear for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_kimi_linear.gguf import KIMI_LINEAR


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="KimiLinearForCausalLM",
            model_types=("kimi_linear",),
            config="inferno_kimi_linear.config:KimiLinearConfig.from_json",
            build="inferno_kimi_linear.model:KimiLinearForCausalLM",
            adapt="inferno_kimi_linear.checkpoint:published_names",
            divides={
                **DECODER,
                **dict.fromkeys(("q_proj", "q_b_proj", "kv_b_proj"), "query heads"),
                **dict.fromkeys(("w1", "w3"), "inner"),
                "w2": "from inner",
                **dict.fromkeys(("b_proj", "f_b_proj", "g_b_proj"), "state heads"),
            },
            dialects={"gguf": KIMI_LINEAR},
            stop_tokens=("<|im_end|>",),
            checkpoints=("moonshotai/Kimi-Linear-48B-A3B-Instruct",),
        )
    ]
