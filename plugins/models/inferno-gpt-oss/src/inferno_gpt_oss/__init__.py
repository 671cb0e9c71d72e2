"""OpenAI's gpt-oss for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_gpt_oss.gguf import GPT_OSS


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="GptOssForCausalLM",
            model_types=("gpt_oss",),
            config="inferno_gpt_oss.config:GptOssConfig.from_json",
            build="inferno_gpt_oss.model:GptOssForCausalLM",
            divides=DECODER,
            dialects={"gguf": GPT_OSS},
            adapt="inferno_gpt_oss.checkpoint:per_expert",
            stop_tokens=("<|return|>", "<|call|>"),
            checkpoints=(
                "openai/gpt-oss-20b",
                "openai/gpt-oss-120b",
                "openai/gpt-oss-safeguard-20b",
                "openai/gpt-oss-safeguard-120b",
            ),
        )
    ]
