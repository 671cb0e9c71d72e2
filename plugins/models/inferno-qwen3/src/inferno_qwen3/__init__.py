"""Qwen3 and Qwen3-VL for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from attrs import evolve

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, Reranker, classifier_of
from inferno_qwen3.gguf import QWEN3, QWEN3_VL

RERANKER = Reranker(
    template=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
        "{% for m in messages %}"
        "{% if m.role == 'system' %}<Instruct>: {{ m.content }}\n"
        "{% elif m.role == 'query' %}<Query>: {{ m.content }}\n"
        "{% elif m.role == 'document' %}<Document>: {{ m.content }}{% endif %}"
        "{% endfor %}"
        # an expression, because Jinja drops the last line break of a template's text
        "{{ '<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n' }}"
    ),
    yes="yes",
    no="no",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)
"""The prompt of Qwen3-Reranker's model card."""


CAUSAL = Architecture(
    name="Qwen3ForCausalLM",
    model_types=("qwen3", "qwen3_vl_text"),
    config="inferno_qwen3.config:Qwen3Config.from_json",
    build="inferno_qwen3.model:Qwen3ForCausalLM",
    divides=DECODER,
    dialects={"gguf": QWEN3},
    stop_tokens=("<|im_end|>",),
    adapt="inferno.contracts:with_head",
    reranker=RERANKER,
    checkpoints=(
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-1.7B",
        "Qwen/Qwen3-4B",
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-14B",
        "Qwen/Qwen3-32B",
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/Qwen3-4B-Thinking-2507",
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
        "Qwen/Qwen3-Embedding-0.6B",
        "Qwen/Qwen3-Reranker-0.6B",
    ),
)

SEEING = Architecture(
    name="Qwen3VLForConditionalGeneration",
    config="inferno_qwen3.vision_config:Qwen3VLConfig.from_json",
    build="inferno_qwen3.vision:Qwen3VLForConditionalGeneration",
    adapt="inferno_qwen3.vision_config:seeing",
    images="inferno_qwen3.images:processor",
    encoders={"gguf": QWEN3_VL},
    divides=DECODER,
    unquantized=("visual.*",),
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    checkpoints=(
        "Qwen/Qwen3-VL-2B-Instruct",
        "Qwen/Qwen3-VL-4B-Instruct",
        "Qwen/Qwen3-VL-8B-Instruct",
        "Qwen/Qwen3-VL-8B-Thinking",
        "Qwen/Qwen3-VL-32B-Instruct",
    ),
)

COSMOS = evolve(
    SEEING,
    name="Cosmos3OmniForConditionalGeneration",
    adapt="inferno_qwen3.vision_config:cosmos",
    encoders={},
    checkpoints=("nvidia/Cosmos3-Nano",),
)
"""What reasons in Cosmos 3 Omni is a Qwen3-VL; what generates images and sounds is not loaded."""


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [CAUSAL, classifier_of(CAUSAL), SEEING, COSMOS]
