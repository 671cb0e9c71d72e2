"""GLM-4 and GLM-4-0414 for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, spelled
from inferno_glm4.gguf import GLM, GLM4
from inferno_glm4.spellings import CHATGLM, OCR

_STOP_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
GLM_0414 = Architecture(
    name="Glm4ForCausalLM",
    model_types=("glm4", "glm4v_text"),
    config="inferno_glm4.config:Glm4Config.from_json",
    build="inferno_glm4.model:Glm4ForCausalLM",
    adapt="inferno.contracts:with_head",
    divides=DECODER,
    dialects={"gguf": GLM4},
    stop_tokens=_STOP_TOKENS,
    checkpoints=(
        "zai-org/GLM-4-9B-0414",
        "zai-org/GLM-4-32B-0414",
        "zai-org/GLM-4-32B-Base-0414",
        "zai-org/GLM-Z1-9B-0414",
        "zai-org/GLM-Z1-32B-0414",
        "zai-org/GLM-Z1-Rumination-32B-0414",
    ),
)
FIRST = Architecture(
    name="GlmForCausalLM",
    model_types=("glm",),
    config="inferno_glm4.config:Glm4Config.from_json",
    build="inferno_glm4.model:GlmForCausalLM",
    adapt="inferno.contracts:with_head",
    divides=DECODER,
    dialects={"gguf": GLM},
    stop_tokens=_STOP_TOKENS,
    checkpoints=(
        "zai-org/glm-4-9b-hf",
        "zai-org/glm-4-9b-chat-hf",
        "zai-org/glm-4-9b-chat-1m-hf",
        "zai-org/glm-edge-1.5b-chat",
        "zai-org/glm-edge-4b-chat",
    ),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [GLM_0414, FIRST, spelled(FIRST, CHATGLM), spelled(GLM_0414, OCR)]
