"""Qwen2 and Qwen2.5, Qwen2.5-VL, Qwen2-Audio, QwQ and DeepSeek-R1-Distill-Qwen for inferno. Imports
no torch until a model is built."""

from __future__ import annotations

from attrs import evolve

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, classifier_of, spelled
from inferno_qwen2 import gguf
from inferno_qwen2.audio_config import TEMPLATE
from inferno_qwen2.spellings import MIMO, QWEN

CAUSAL = Architecture(
    name="Qwen2ForCausalLM",
    model_types=("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"),
    config="inferno_qwen2.config:Qwen2Config.from_json",
    build="inferno_qwen2.model:Qwen2ForCausalLM",
    adapt="inferno.contracts:with_head",
    divides=DECODER,
    dialects={"gguf": gguf.QWEN2},
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    checkpoints=(
        "Qwen/Qwen2.5-0.5B-Instruct",
        "Qwen/Qwen2.5-1.5B-Instruct",
        "Qwen/Qwen2.5-3B-Instruct",
        "Qwen/Qwen2.5-7B-Instruct",
        "Qwen/Qwen2.5-14B-Instruct",
        "Qwen/Qwen2.5-32B-Instruct",
        "Qwen/Qwen2.5-72B-Instruct",
        "Qwen/Qwen2.5-Coder-32B-Instruct",
        "Qwen/Qwen2-7B-Instruct",
        "Qwen/QwQ-32B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
    ),
)

SEEING = Architecture(
    name="Qwen2_5_VLForConditionalGeneration",
    config="inferno_qwen2.vision_config:Qwen25VLConfig.from_json",
    build="inferno_qwen2.vision:Qwen25VLForConditionalGeneration",
    adapt="inferno_qwen2.vision_config:seeing",
    images="inferno_qwen2.images:processor",
    encoders={"gguf": gguf.QWEN2_5_VL},
    divides=DECODER,
    unquantized=("visual.*",),
    stop_tokens=CAUSAL.stop_tokens,
    checkpoints=(
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "Qwen/Qwen2.5-VL-32B-Instruct",
        "Qwen/Qwen2.5-VL-72B-Instruct",
    ),
)

HEARING = Architecture(
    name="Qwen2AudioForConditionalGeneration",
    config="inferno_qwen2.audio_config:Qwen2AudioConfig.from_json",
    build="inferno_qwen2.audio:Qwen2AudioForConditionalGeneration",
    adapt="inferno.configs:heard",
    audio="inferno_qwen2.audio_config:processor",
    divides=DECODER,
    unquantized=("hearing.*",),
    stop_tokens=CAUSAL.stop_tokens,
    chat_template=TEMPLATE,
    checkpoints=("Qwen/Qwen2-Audio-7B-Instruct", "Qwen/Qwen2-Audio-7B"),
)

OMNI = Architecture(
    name="Qwen2_5OmniThinkerForConditionalGeneration",
    aliases=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    config="inferno_qwen2.omni_config:Qwen25OmniConfig.from_json",
    build="inferno_qwen2.omni:Qwen25OmniThinker",
    adapt="inferno_qwen2.omni_config:thinking",
    images="inferno_qwen2.images:processor",
    audio="inferno_qwen2.omni_config:processor",
    divides=DECODER,
    unquantized=("visual.*", "hearing.*"),
    stop_tokens=CAUSAL.stop_tokens,
    checkpoints=("Qwen/Qwen2.5-Omni-3B", "Qwen/Qwen2.5-Omni-7B"),
)
PREDICTING = evolve(
    CAUSAL,
    config="inferno_qwen2.mimo_config:MiMoConfig.from_json",
    mtp="inferno_qwen2.mimo:MiMoLayers",
)
OTHERS = [spelled(CAUSAL, QWEN, {"gguf": gguf.QWEN}), spelled(PREDICTING, MIMO)]


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [CAUSAL, classifier_of(CAUSAL), SEEING, HEARING, OMNI, *OTHERS]
