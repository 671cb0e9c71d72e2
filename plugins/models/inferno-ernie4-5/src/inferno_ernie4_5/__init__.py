"""ERNIE 4.5 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_ernie4_5.gguf import ERNIE, ERNIE_MOE

STOP_TOKENS = ("</s>", "<|end_of_sentence|>")


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Ernie4_5ForCausalLM",
            aliases=("Ernie4_5_ForCausalLM",),
            model_types=("ernie4_5",),
            config="inferno_ernie4_5.config:ErnieConfig.from_json",
            build="inferno_ernie4_5.model:Ernie4_5ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": ERNIE},
            stop_tokens=STOP_TOKENS,
            checkpoints=("baidu/ERNIE-4.5-0.3B-PT", "baidu/ERNIE-4.5-0.3B-Base-PT"),
        ),
        Architecture(
            name="Ernie4_5_MoeForCausalLM",
            model_types=("ernie4_5_moe",),
            config="inferno_ernie4_5.config:ErnieMoeConfig.from_json",
            build="inferno_ernie4_5.model:Ernie4_5_MoeForCausalLM",
            adapt="inferno_ernie4_5.checkpoint:usual_names",
            divides=DECODER,
            dialects={"gguf": ERNIE_MOE},
            stop_tokens=STOP_TOKENS,
            checkpoints=(
                "baidu/ERNIE-4.5-21B-A3B-PT",
                "baidu/ERNIE-4.5-21B-A3B-Thinking",
                "baidu/ERNIE-4.5-300B-A47B-PT",
            ),
        ),
    ]
