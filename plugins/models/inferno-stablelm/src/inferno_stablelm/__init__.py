"""StableLM and StableLM 2 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, spelled
from inferno_stablelm import gguf
from inferno_stablelm.spellings import EPOCH, ORION

STABLE = Architecture(
    name="StableLmForCausalLM",
    model_types=("stablelm",),
    config="inferno_stablelm.config:StableLmConfig.from_json",
    build="inferno_stablelm.model:StableLmForCausalLM",
    divides=DECODER,
    dialects={"gguf": gguf.STABLELM},
    stop_tokens=("<|endoftext|>", "<|im_end|>"),
    checkpoints=(
        "stabilityai/stablelm-3b-4e1t",
        "stabilityai/stablelm-zephyr-3b",
        "stabilityai/stable-code-3b",
        "stabilityai/stable-code-instruct-3b",
        "stabilityai/stablelm-2-1_6b",
        "stabilityai/stablelm-2-1_6b-chat",
        "stabilityai/stablelm-2-zephyr-1_6b",
        "stabilityai/stablelm-2-12b",
        "stabilityai/stablelm-2-12b-chat",
    ),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [STABLE, spelled(STABLE, EPOCH), spelled(STABLE, ORION, {"gguf": gguf.ORION})]
