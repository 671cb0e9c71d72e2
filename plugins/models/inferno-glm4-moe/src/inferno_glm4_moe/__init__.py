"""GLM-4.5 and GLM-4.6, and Ling 2.0, for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, spelled
from inferno_glm4_moe import gguf
from inferno_glm4_moe.spellings import LING

GLM = Architecture(
    name="Glm4MoeForCausalLM",
    model_types=("glm4_moe", "glm4v_moe_text"),
    config="inferno_glm4_moe.config:Glm4MoeConfig.from_json",
    build="inferno_glm4_moe.model:Glm4MoeForCausalLM",
    divides=DECODER,
    mtp="inferno_glm4_moe.model:mtp_layers",
    dialects={"gguf": gguf.GLM4_MOE},
    stop_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
    checkpoints=("zai-org/GLM-4.5", "zai-org/GLM-4.5-Air", "zai-org/GLM-4.6"),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [GLM, spelled(GLM, LING, {"gguf": gguf.LING})]
