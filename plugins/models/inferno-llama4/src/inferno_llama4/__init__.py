"""Llama 4 (Scout, Maverick) for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_llama4.gguf import LLAMA4
from inferno_llama4.vision_gguf import LLAMA4_ENCODER

_STOPS = ("<|eot|>", "<|eom|>", "<|end_of_text|>")


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Llama4ForCausalLM",
            aliases=("Llama4TextModel",),
            model_types=("llama4_text",),
            config="inferno_llama4.config:Llama4Config.from_json",
            build="inferno_llama4.model:Llama4ForCausalLM",
            adapt="inferno_llama4.checkpoint:of_text",
            divides=DECODER,
            dialects={"gguf": LLAMA4},
            stop_tokens=_STOPS,
        ),
        Architecture(
            name="Llama4ForConditionalGeneration",
            model_types=("llama4",),
            config="inferno_llama4.vision_config:SeeingLlama4Config.from_json",
            build="inferno_llama4.vision:Llama4ForConditionalGeneration",
            adapt="inferno_llama4.vision_config:seeing",
            images="inferno_llama4.images:processor",
            encoders={"gguf": LLAMA4_ENCODER},
            unquantized=("*.router", "encoder.*"),
            divides=DECODER,
            stop_tokens=_STOPS,
            checkpoints=(
                "meta-llama/Llama-4-Scout-17B-16E-Instruct",
                "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
                "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
                "meta-llama/Llama-Guard-4-12B",
            ),
        ),
    ]
