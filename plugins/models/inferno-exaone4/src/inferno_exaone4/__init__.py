"""EXAONE 4 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_exaone4.gguf import EXAONE4


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="Exaone4ForCausalLM",
            model_types=("exaone4",),
            config="inferno_exaone4.config:Exaone4Config.from_json",
            build="inferno_exaone4.model:Exaone4ForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": EXAONE4},
            stop_tokens=("[|endofturn|]",),
            checkpoints=("LGAI-EXAONE/EXAONE-4.0-1.2B", "LGAI-EXAONE/EXAONE-4.0-32B"),
        )
    ]
