"""LFM2 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, Divided
from inferno_lfm2.gguf import LFM2, LFM2_MOE
from inferno_lfm2.vision_gguf import LFM2_ENCODER

_DIVIDES: dict[str, Divided] = {
    **DECODER,
    "self_attn.out_proj": "from heads",
    "conv.in_proj": "state inputs",
    "conv.out_proj": "from state",
    **dict.fromkeys(("w1", "w3"), "inner"),
    "w2": "from inner",
}


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Lfm2ForCausalLM",
            model_types=("lfm2",),
            config="inferno_lfm2.config:Lfm2Config.from_json",
            build="inferno_lfm2.model:Lfm2ForCausalLM",
            adapt="inferno_lfm2.checkpoint:usual_names",
            divides=_DIVIDES,
            dialects={"gguf": LFM2},
            checkpoints=(
                "LiquidAI/LFM2-350M",
                "LiquidAI/LFM2-700M",
                "LiquidAI/LFM2-1.2B",
                "LiquidAI/LFM2-2.6B",
            ),
        ),
        Architecture(
            name="Lfm2MoeForCausalLM",
            model_types=("lfm2_moe",),
            config="inferno_lfm2.config:Lfm2MoeConfig.from_json",
            build="inferno_lfm2.model:Lfm2MoeForCausalLM",
            adapt="inferno_lfm2.checkpoint:usual_names",
            divides=_DIVIDES,
            dialects={"gguf": LFM2_MOE},
            checkpoints=("LiquidAI/LFM2-8B-A1B",),
        ),
        Architecture(
            name="Lfm2VlForConditionalGeneration",
            model_types=("lfm2_vl", "lfm2-vl"),
            config="inferno_lfm2.vision_config:SeeingLfm2Config.from_json",
            build="inferno_lfm2.vision:Lfm2VlForConditionalGeneration",
            adapt="inferno_lfm2.vision_config:seeing",
            images="inferno_lfm2.images:processor",
            unquantized=("encoder.*",),
            divides=_DIVIDES,
            encoders={"gguf": LFM2_ENCODER},
            checkpoints=(
                "LiquidAI/LFM2-VL-450M",
                "LiquidAI/LFM2-VL-1.6B",
                "LiquidAI/LFM2-VL-3B",
                "LiquidAI/LFM2.5-VL-450M",
                "LiquidAI/LFM2.5-VL-1.6B",
                "LiquidAI/LFM2.5-VL-3B",
            ),
        ),
    ]
