"""Granite 3 and 4 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, MAMBA2, Architecture, spelled
from inferno_granite_hybrid.gguf import GRANITE, GRANITE_HYBRID
from inferno_granite_hybrid.spellings import MINICPM, TELEFLM

_STOP_TOKENS = ("<|end_of_text|>",)
DENSE = Architecture(
    name="GraniteForCausalLM",
    model_types=("granite", "granite4_vision_text", "granite_docling_text"),
    config="inferno_granite_hybrid.config:GraniteConfig.from_json",
    build="inferno_granite_hybrid.model:GraniteForCausalLM",
    adapt="inferno.contracts:with_head",
    divides=DECODER,
    dialects={"gguf": GRANITE},
    stop_tokens=_STOP_TOKENS,
    checkpoints=(
        "ibm-granite/granite-3.0-2b-instruct",
        "ibm-granite/granite-3.1-8b-instruct",
        "ibm-granite/granite-3.2-8b-instruct",
        "ibm-granite/granite-3.3-2b-instruct",
        "ibm-granite/granite-3.3-8b-instruct",
    ),
)
HYBRID = Architecture(
    name="GraniteMoeHybridForCausalLM",
    model_types=("granitemoehybrid",),
    config="inferno_granite_hybrid.config:GraniteHybridConfig.from_json",
    build="inferno_granite_hybrid.model:GraniteMoeHybridForCausalLM",
    adapt="inferno_granite_hybrid.checkpoint:per_expert",
    dialects={"gguf": GRANITE_HYBRID},
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
    return [DENSE, HYBRID, spelled(DENSE, MINICPM), spelled(DENSE, TELEFLM)]
