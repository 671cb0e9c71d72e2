"""SmolLM3 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_smollm3.gguf import SMOLLM3


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="SmolLM3ForCausalLM",
            model_types=("smollm3",),
            config="inferno_smollm3.config:SmolLM3Config.from_json",
            build="inferno_smollm3.model:SmolLM3ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": SMOLLM3},
            stop_tokens=("<|im_end|>", "<|end_of_text|>"),
            checkpoints=("HuggingFaceTB/SmolLM3-3B", "HuggingFaceTB/SmolLM3-3B-Base"),
        )
    ]
