"""ERNIE 4.5, dense, for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_ernie4_5.gguf import ERNIE


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
            stop_tokens=("</s>", "<|end_of_sentence|>"),
            checkpoints=("baidu/ERNIE-4.5-0.3B-PT", "baidu/ERNIE-4.5-0.3B-Base-PT"),
        )
    ]
