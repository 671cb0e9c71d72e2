"""The Llama family (Llama 2 and 3, Yi, DeepSeek-R1-Distill-Llama) for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture, GgufNames
from inferno.modelconfig import GGUF_FIELDS, GGUF_MODULES

GGUF = GgufNames(
    architecture="llama",
    fields=GGUF_FIELDS,
    modules=GGUF_MODULES,
    rotary_pairs={"blk.{n}.attn_q": "attention.head_count", "blk.{n}.attn_k": "attention.head_count_kv"},
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="LlamaForCausalLM",
            config="inferno_llama.config:LlamaConfig.from_json",
            build="inferno_llama.model:LlamaForCausalLM",
            gguf=GGUF,
        )
    ]
