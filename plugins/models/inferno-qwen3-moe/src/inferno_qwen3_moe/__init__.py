"""Qwen3's mixtures of experts, Qwen3-VL's and Qwen3-Omni's too, for inferno. Imports no torch until
a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_qwen3_moe.gguf import QWEN3_MOE, QWEN3_VL_MOE

CAUSAL = Architecture(
    name="Qwen3MoeForCausalLM",
    model_types=("qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text"),
    config="inferno_qwen3_moe.config:Qwen3MoeConfig.from_json",
    build="inferno_qwen3_moe.model:Qwen3MoeForCausalLM",
    adapt="inferno_qwen3_moe.checkpoint:per_expert",
    divides=DECODER,
    dialects={"gguf": QWEN3_MOE},
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    checkpoints=(
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3-30B-A3B-Thinking-2507",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        "Qwen/Qwen3-235B-A22B",
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "Qwen/Qwen3-235B-A22B-Thinking-2507",
        "Qwen/Qwen3-Coder-480B-A35B-Instruct",
    ),
)

SEEING = Architecture(
    name="Qwen3VLMoeForConditionalGeneration",
    config="inferno_qwen3_moe.vision_config:Qwen3VLMoeConfig.from_json",
    build="inferno_qwen3_moe.vision:Qwen3VLMoeForConditionalGeneration",
    adapt="inferno_qwen3_moe.vision_config:seeing",
    images="inferno_qwen3_moe.images:processor",
    encoders={"gguf": QWEN3_VL_MOE},
    divides=DECODER,
    unquantized=("*.gate", "visual.*"),
    stop_tokens=CAUSAL.stop_tokens,
    checkpoints=(
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
        "Qwen/Qwen3-VL-30B-A3B-Thinking",
        "Qwen/Qwen3-VL-235B-A22B-Instruct",
        "Qwen/Qwen3-VL-235B-A22B-Thinking",
    ),
)

THINKER = Architecture(
    name="Qwen3OmniMoeThinkerForConditionalGeneration",
    aliases=("Qwen3OmniMoeForConditionalGeneration",),
    config="inferno_qwen3_moe.omni_config:Qwen3OmniMoeConfig.from_json",
    build="inferno_qwen3_moe.omni:Qwen3OmniMoeThinker",
    adapt="inferno_qwen3_moe.omni_config:thinking",
    images="inferno_qwen3_moe.images:processor",
    audio="inferno_qwen3_moe.omni_config:hears",
    divides=DECODER,
    unquantized=("*.gate", "visual.*", "hearing.*"),
    stop_tokens=CAUSAL.stop_tokens,
    checkpoints=(
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "Qwen/Qwen3-Omni-30B-A3B-Thinking",
        "Qwen/Qwen3-Omni-30B-A3B-Captioner",
    ),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [CAUSAL, SEEING, THINKER]
