"""OLMo 2, OLMo 3 and OLMoE for inferno. Imports no torch until a model is built."""

from __future__ import annotations

import attrs

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_olmo.gguf import OLMO, OLMOE

_STOP_TOKENS = ("<|endoftext|>", "<|im_end|>")


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Olmo2ForCausalLM",
            model_types=("olmo2",),
            config="inferno_olmo.config:Olmo2Config.from_json",
            build="inferno_olmo.model:Olmo2ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": OLMO},
            stop_tokens=_STOP_TOKENS,
            checkpoints=(
                "allenai/OLMo-2-0425-1B-Instruct",
                "allenai/OLMo-2-1124-7B-Instruct",
                "allenai/OLMo-2-1124-13B-Instruct",
                "allenai/OLMo-2-0325-32B-Instruct",
            ),
        ),
        Architecture(
            name="Olmo3ForCausalLM",
            model_types=("olmo3",),
            config="inferno_olmo.config:Olmo3Config.from_json",
            build="inferno_olmo.model:Olmo3ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": attrs.evolve(OLMO, priority=-1)},
            stop_tokens=_STOP_TOKENS,
            checkpoints=(
                "allenai/Olmo-3-1025-7B",
                "allenai/Olmo-3-7B-Instruct",
                "allenai/Olmo-3-7B-Think",
                "allenai/Olmo-3-1125-32B",
                "allenai/Olmo-3-32B-Think",
            ),
        ),
        Architecture(
            name="OlmoeForCausalLM",
            model_types=("olmoe",),
            config="inferno_olmo.config:OlmoeConfig.from_json",
            build="inferno_olmo.model:OlmoeForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": OLMOE},
            stop_tokens=_STOP_TOKENS,
            checkpoints=("allenai/OLMoE-1B-7B-0924-Instruct", "allenai/OLMoE-1B-7B-0125-Instruct"),
        ),
    ]
