"""Gemma 1 to 4 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from collections.abc import Mapping

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, Divided
from inferno_gemma.gguf import GEMMA, GEMMA2, GEMMA3, GEMMA3N, GEMMA4
from inferno_gemma.vision4_gguf import GEMMA4_ENCODER
from inferno_gemma.vision_gguf import GEMMA3_ENCODER

_END_OF_TURN = ("<end_of_turn>",)
_END_OF_TURN_4 = ("<turn|>", "<|tool_response>")
"""The second follows a call of a tool, whose answer the model would make up."""
_SHARED: Mapping[str, Divided] = {**DECODER, "embed_tokens_per_layer": "vocabulary"}


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="GemmaForCausalLM",
            model_types=("gemma",),
            config="inferno_gemma.config:GemmaConfig.from_json",
            build="inferno_gemma.gemma1:GemmaForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": GEMMA},
            stop_tokens=_END_OF_TURN,
            checkpoints=(
                "google/gemma-2b-it",
                "google/gemma-7b-it",
                "google/gemma-1.1-2b-it",
                "google/gemma-1.1-7b-it",
                "google/codegemma-2b",
                "google/codegemma-7b-it",
            ),
        ),
        Architecture(
            name="Gemma2ForCausalLM",
            model_types=("gemma2",),
            config="inferno_gemma.config:Gemma2Config.from_json",
            build="inferno_gemma.gemma2:Gemma2ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": GEMMA2},
            stop_tokens=_END_OF_TURN,
            checkpoints=(
                "google/gemma-2-2b-it",
                "google/gemma-2-9b-it",
                "google/gemma-2-27b-it",
                "google/gemma-2-2b-jpn-it",
                "google/shieldgemma-2b",
            ),
        ),
        Architecture(
            name="Gemma3ForCausalLM",
            aliases=("Gemma3TextModel",),
            model_types=("gemma3_text",),
            config="inferno_gemma.config:Gemma3Config.from_json",
            build="inferno_gemma.gemma3:Gemma3ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": GEMMA3},
            stop_tokens=_END_OF_TURN,
            checkpoints=(
                "google/gemma-3-270m-it",
                "google/gemma-3-1b-it",
                "google/medgemma-27b-text-it",
                "google/embeddinggemma-300m",
                "EssentialAI/rnj-1-instruct",
            ),
        ),
        Architecture(
            name="Gemma3ForConditionalGeneration",
            model_types=("gemma3",),
            config="inferno_gemma.vision_config:SeeingGemma3Config.from_multimodal",
            build="inferno_gemma.vision:Gemma3ForConditionalGeneration",
            adapt="inferno_gemma.vision_config:seeing",
            images="inferno_gemma.images:processor",
            encoders={"gguf": GEMMA3_ENCODER},
            unquantized=("encoder.*",),
            divides=DECODER,
            stop_tokens=_END_OF_TURN,
            checkpoints=(
                "google/gemma-3-4b-it",
                "google/gemma-3-12b-it",
                "google/gemma-3-27b-it",
                "google/medgemma-4b-it",
            ),
        ),
        Architecture(
            name="Gemma3nForCausalLM",
            aliases=("Gemma3nTextModel",),
            model_types=("gemma3n_text",),
            config="inferno_gemma.config3n:Gemma3nConfig.from_json",
            build="inferno_gemma.gemma3n:Gemma3nForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=_SHARED,
            dialects={"gguf": GEMMA3N},
            stop_tokens=_END_OF_TURN,
        ),
        Architecture(
            name="Gemma3nForConditionalGeneration",
            model_types=("gemma3n",),
            config="inferno_gemma.config3n_media:gemma3n",
            build="inferno_gemma.gemma3n_media:Gemma3nForConditionalGeneration",
            adapt="inferno_gemma.config3n_media:seeing",
            images="inferno_gemma.images:processor3n",
            audio="inferno_gemma.audio3n_config:processor",
            unquantized=("encoder.*", "hearing.*"),
            divides=_SHARED,
            stop_tokens=_END_OF_TURN,
            checkpoints=("google/gemma-3n-E2B-it", "google/gemma-3n-E4B-it"),
        ),
        Architecture(
            name="Gemma4ForCausalLM",
            aliases=("Gemma4TextModel",),
            model_types=("gemma4_text",),
            config="inferno_gemma.config4:Gemma4Config.from_json",
            build="inferno_gemma.gemma4:Gemma4ForCausalLM",
            adapt="inferno_gemma.experts:of_text",
            divides=_SHARED,
            dialects={"gguf": GEMMA4},
            stop_tokens=_END_OF_TURN_4,
        ),
        Architecture(
            name="Gemma4ForConditionalGeneration",
            model_types=("gemma4",),
            config="inferno_gemma.vision4_config:gemma4",
            build="inferno_gemma.vision4:Gemma4ForConditionalGeneration",
            adapt="inferno_gemma.vision4_config:seeing",
            images="inferno_gemma.images:processor4",
            audio="inferno_gemma.audio4_config:processor",
            encoders={"gguf": GEMMA4_ENCODER},
            unquantized=("*.router", "*.router.*", "encoder.*", "hearing.*"),
            divides=_SHARED,
            stop_tokens=_END_OF_TURN_4,
            checkpoints=(
                "google/gemma-4-E2B-it",
                "google/gemma-4-E4B-it",
                "google/gemma-4-26B-A4B-it",
                "google/gemma-4-31B-it",
            ),
        ),
        Architecture(
            name="Gemma4UnifiedForCausalLM",
            model_types=("gemma4_unified_text",),
            config="inferno_gemma.config4:Gemma4UnifiedConfig.from_json",
            build="inferno_gemma.gemma4:Gemma4ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            stop_tokens=_END_OF_TURN_4,
        ),
        Architecture(
            name="Gemma4UnifiedForConditionalGeneration",
            model_types=("gemma4_unified",),
            config="inferno_gemma.unified_config:unified",
            build="inferno_gemma.unified:Gemma4UnifiedForConditionalGeneration",
            adapt="inferno_gemma.unified_config:seeing",
            images="inferno_gemma.images:processor4_unified",
            audio="inferno_gemma.unified_config:processor",
            unquantized=("encoder.*", "hearing.*"),
            divides=DECODER,
            stop_tokens=_END_OF_TURN_4,
            checkpoints=("google/gemma-4-12B-it",),
        ),
    ]
