"""Granite 3 and 4 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from attrs import evolve

from inferno import hookimpl
from inferno.contracts import DECODER, MAMBA2, Architecture, spelled
from inferno_granite_hybrid import gguf
from inferno_granite_hybrid.spellings import MINICPM, TELEFLM

_STOP_TOKENS = ("<|end_of_text|>",)
DENSE = Architecture(
    name="GraniteForCausalLM",
    model_types=("granite", "granite4_vision_text", "granite_docling_text"),
    config="inferno_granite_hybrid.config:GraniteConfig.from_json",
    build="inferno_granite_hybrid.model:GraniteForCausalLM",
    adapt="inferno.contracts:with_head",
    divides=DECODER,
    dialects={"gguf": gguf.GRANITE},
    stop_tokens=_STOP_TOKENS,
    checkpoints=(
        "ibm-granite/granite-3.0-2b-instruct",
        "ibm-granite/granite-3.1-8b-instruct",
        "ibm-granite/granite-3.2-8b-instruct",
        "ibm-granite/granite-3.3-2b-instruct",
        "ibm-granite/granite-3.3-8b-instruct",
    ),
)
MOE = Architecture(
    name="GraniteMoeForCausalLM",
    model_types=("granitemoe",),
    config="inferno_granite_hybrid.config:GraniteMoeConfig.from_json",
    build="inferno_granite_hybrid.model:GraniteMoeForCausalLM",
    adapt="inferno_granite_hybrid.checkpoint:per_expert",
    divides={**DECODER, "input_linear": "two inner", "output_linear": "from inner"},
    dialects={"gguf": gguf.GRANITE_MOE},
    stop_tokens=_STOP_TOKENS,
    checkpoints=(
        "ibm-granite/granite-3.0-1b-a400m-instruct",
        "ibm-granite/granite-3.0-3b-a800m-instruct",
        "ibm-granite/granite-3.1-1b-a400m-instruct",
        "ibm-granite/granite-3.1-3b-a800m-instruct",
    ),
)
MOE_SHARED = evolve(
    MOE,
    name="GraniteMoeSharedForCausalLM",
    model_types=("granitemoeshared",),
    dialects={"gguf": gguf.GRANITE_MOE_SHARED},
    checkpoints=("ibm-research/moe-7b-1b-active-shared-experts",),
)
HYBRID = Architecture(
    name="GraniteMoeHybridForCausalLM",
    model_types=("granitemoehybrid",),
    config="inferno_granite_hybrid.config:GraniteHybridConfig.from_json",
    build="inferno_granite_hybrid.model:GraniteMoeHybridForCausalLM",
    adapt="inferno_granite_hybrid.checkpoint:per_expert",
    dialects={"gguf": gguf.GRANITE_HYBRID},
    divides={
        **DECODER,
        **MAMBA2,
        "input_linear": "two inner",
        "output_linear": "from inner",
    },
    stop_tokens=_STOP_TOKENS,
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


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        DENSE,
        MOE,
        MOE_SHARED,
        HYBRID,
        spelled(DENSE, MINICPM, {"gguf": gguf.MINICPM}),
        spelled(DENSE, TELEFLM),
    ]
