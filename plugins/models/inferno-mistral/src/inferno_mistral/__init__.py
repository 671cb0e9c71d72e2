"""The Mistral family (7B, Nemo, Small, Ministral 8B and 3, Mixtral) for inferno. Imports no torch
until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, classifier_of
from inferno_mistral.gguf import MINISTRAL3, MISTRAL, MIXTRAL
from inferno_mistral.vision_gguf import PIXTRAL

_CONFIG = "inferno_mistral.config:MistralConfig.from_json"
_BUILD = "inferno_mistral.model:MistralForCausalLM"


CAUSAL = Architecture(
    name="MistralForCausalLM",
    model_types=("mistral",),
    config=_CONFIG,
    build=_BUILD,
    adapt="inferno.contracts:with_head",
    divides=DECODER,
    dialects={"gguf": MISTRAL},
    checkpoints=(
        "mistralai/Mistral-7B-v0.1",
        "mistralai/Mistral-7B-Instruct-v0.2",
        "mistralai/Mistral-7B-Instruct-v0.3",
        "mistralai/Mistral-Nemo-Instruct-2407",
        "mistralai/Ministral-8B-Instruct-2410",
        "mistralai/Mistral-Small-24B-Instruct-2501",
        "mistralai/Mistral-Large-Instruct-2407",
        "mistralai/Codestral-22B-v0.1",
        "HuggingFaceH4/zephyr-7b-beta",
        "teknium/OpenHermes-2.5-Mistral-7B",
    ),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        CAUSAL,
        classifier_of(CAUSAL),
        # transformers' name for a Mistral whose config.json has `layer_types`.
        Architecture(
            name="MinistralForCausalLM",
            model_types=("ministral",),
            config=_CONFIG,
            build=_BUILD,
            divides=DECODER,
            adapt="inferno.contracts:with_head",
        ),
        Architecture(
            name="Ministral3ForCausalLM",
            model_types=("ministral3",),
            config="inferno_mistral.config:Ministral3Config.from_json",
            build="inferno_mistral.model:Ministral3ForCausalLM",
            divides=DECODER,
            adapt="inferno.contracts:with_head",
            dialects={"gguf": MINISTRAL3},
        ),
        Architecture(
            name="Mistral3ForConditionalGeneration",
            model_types=("mistral3",),
            config="inferno_mistral.vision_config:mistral3",
            build="inferno_mistral.vision:Mistral3ForConditionalGeneration",
            adapt="inferno_mistral.vision_config:seeing",
            images="inferno_mistral.images:processor",
            encoders={"gguf": PIXTRAL},
            divides=DECODER,
            unquantized=("encoder.*",),
            checkpoints=(
                "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
                "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
                "mistralai/Magistral-Small-2509",
                "mistralai/Ministral-3-3B-Instruct-2512",
                "mistralai/Ministral-3-8B-Instruct-2512",
                "mistralai/Ministral-3-14B-Instruct-2512",
            ),
        ),
        Architecture(
            name="MixtralForCausalLM",
            model_types=("mixtral",),
            config="inferno_mistral.config:MixtralConfig.from_json",
            build="inferno_mistral.model:MixtralForCausalLM",
            adapt="inferno.contracts:with_head",
            divides={**DECODER, "w1": "inner", "w3": "inner", "w2": "from inner"},
            dialects={"gguf": MIXTRAL},
            stop_tokens=("<|im_end|>",),
            checkpoints=(
                "mistralai/Mixtral-8x7B-Instruct-v0.1",
                "mistralai/Mixtral-8x22B-Instruct-v0.1",
                "NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO",
            ),
        ),
    ]
