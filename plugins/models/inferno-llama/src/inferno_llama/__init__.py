"""The Llama family (Llama 2 and 3, Yi, DeepSeek-R1-Distill-Llama, Voxtral) for inferno. Imports no
torch until a model is built."""

from __future__ import annotations

from attrs import evolve

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, classifier_of, spelled
from inferno_llama import gguf
from inferno_llama.audio_config import TEMPLATE
from inferno_llama.spellings import BAICHUAN, BIASED, EXAONE, INTERNLM2, PADDLE, PLAIN, TELECHAT

CAUSAL = Architecture(
    name="LlamaForCausalLM",
    aliases=PLAIN,
    model_types=("llama",),
    config="inferno_llama.config:LlamaConfig.from_json",
    build="inferno_llama.model:LlamaForCausalLM",
    adapt="inferno.contracts:with_head",
    divides=DECODER,
    dialects={"gguf": gguf.LLAMA},
    stop_tokens=("<|eot_id|>", "<|eom_id|>"),
    checkpoints=(
        "meta-llama/Llama-2-7b-chat-hf",
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.2-1B-Instruct",
        "meta-llama/Llama-3.2-3B-Instruct",
        "meta-llama/Llama-3.3-70B-Instruct",
        "01-ai/Yi-1.5-9B-Chat",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "xverse/XVERSE-7B-Chat",
        "BAAI/AquilaChat2-7B",
    ),
)

SEARCHED = Architecture(
    name="DeciLMForCausalLM",
    model_types=("nemotron-nas", "deci"),
    config="inferno_llama.searched_config:SearchedConfig.from_json",
    build="inferno_llama.searched:DeciLMForCausalLM",
    adapt="inferno.contracts:with_head",
    divides=DECODER,
    stop_tokens=CAUSAL.stop_tokens,
    checkpoints=(
        "nvidia/Llama-3_1-Nemotron-51B-Instruct",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5",
        "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1",
        "Deci/DeciLM-7B-instruct",
    ),
)

HEARING = Architecture(
    name="VoxtralForConditionalGeneration",
    config="inferno_llama.audio_config:VoxtralConfig.from_json",
    build="inferno_llama.audio:VoxtralForConditionalGeneration",
    adapt="inferno.configs:heard",
    audio="inferno_llama.audio_config:processor",
    divides=DECODER,
    unquantized=("hearing.*",),
    chat_template=TEMPLATE,
    checkpoints=("mistralai/Voxtral-Mini-3B-2507", "mistralai/Voxtral-Small-24B-2507"),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    normal = evolve(CAUSAL, adapt="inferno_llama.spellings:with_normal_head")
    return [
        CAUSAL,
        SEARCHED,
        classifier_of(CAUSAL),
        HEARING,
        spelled(CAUSAL, BIASED, {"gguf": gguf.PANGU}),
        spelled(CAUSAL, INTERNLM2, {"gguf": gguf.INTERNLM2}),
        spelled(CAUSAL, EXAONE, {"gguf": gguf.EXAONE}),
        spelled(CAUSAL, TELECHAT),
        spelled(CAUSAL, PADDLE),
        spelled(normal, BAICHUAN, {"gguf": gguf.BAICHUAN}),
    ]
