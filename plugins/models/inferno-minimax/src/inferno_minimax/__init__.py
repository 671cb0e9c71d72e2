"""MiniMax-M2 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_minimax.gguf import MINIMAX_M2


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="MiniMaxM2ForCausalLM",
            model_types=("minimax_m2",),
            config="inferno_minimax.config:MiniMaxM2Config.from_json",
            build="inferno_minimax.model:MiniMaxM2ForCausalLM",
            adapt="inferno_minimax.checkpoint:usual_names",
            divides={**DECODER, "w1": "inner", "w3": "inner", "w2": "from inner"},
            dialects={"gguf": MINIMAX_M2},
            stop_tokens=("[e~[",),
            checkpoints=(
                "MiniMaxAI/MiniMax-M2",
                "MiniMaxAI/MiniMax-M2.1",
                "MiniMaxAI/MiniMax-M2.5",
            ),
        )
    ]
