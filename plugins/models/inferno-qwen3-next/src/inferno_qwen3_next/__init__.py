"""Qwen3-Next and Qwen3.5 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from functools import partial

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_qwen3_next.gguf import QWEN3_NEXT, QWEN35, QWEN35_MOE, QWEN35_MOE_VL, QWEN35_VL

_Architecture = partial(
    Architecture,
    build="inferno_qwen3_next.model:Qwen3NextForCausalLM",
    mtp="inferno_qwen3_next.mtp:MTPLayers",
    adapt="inferno_qwen3_next.checkpoint:text_part",
    divides={
        **DECODER,
        "q_proj": "query heads",
        **dict.fromkeys(("in_proj_qkvz", "in_proj_qkv"), "state inputs"),
        **dict.fromkeys(("in_proj_ba", "in_proj_z", "in_proj_b", "in_proj_a"), "state heads"),
        "out_proj": "from state",
    },
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
)
_Seeing = partial(
    _Architecture,
    build="inferno_qwen3_next.vision:Qwen35ForConditionalGeneration",
    adapt="inferno_qwen3_next.checkpoint:seeing",
    images="inferno_qwen3_next.images:processor",
    unquantized=("*.gate", "visual.*"),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        _Architecture(
            name="Qwen3NextForCausalLM",
            model_types=("qwen3_next",),
            config="inferno_qwen3_next.config:qwen3_next",
            dialects={"gguf": QWEN3_NEXT},
            checkpoints=(
                "Qwen/Qwen3-Next-80B-A3B-Instruct",
                "Qwen/Qwen3-Next-80B-A3B-Thinking",
                "Qwen/Qwen3-Coder-Next",
            ),
        ),
        _Architecture(
            name="Qwen3_5ForCausalLM",
            model_types=("qwen3_5_text",),
            config="inferno_qwen3_next.config:qwen3_5",
            dialects={"gguf": QWEN35},
        ),
        _Architecture(
            name="Qwen3_5MoeForCausalLM",
            model_types=("qwen3_5_moe_text",),
            config="inferno_qwen3_next.config:qwen3_5_moe",
            dialects={"gguf": QWEN35_MOE},
        ),
        _Seeing(
            name="Qwen3_5ForConditionalGeneration",
            model_types=("qwen3_5",),
            config="inferno_qwen3_next.vision_config:qwen3_5",
            encoders={"gguf": QWEN35_VL},
            checkpoints=("Qwen/Qwen3.5-27B",),
        ),
        _Seeing(
            name="Qwen3_5MoeForConditionalGeneration",
            model_types=("qwen3_5_moe",),
            config="inferno_qwen3_next.vision_config:qwen3_5_moe",
            encoders={"gguf": QWEN35_MOE_VL},
            checkpoints=("Qwen/Qwen3.5-35B-A3B",),
        ),
    ]
