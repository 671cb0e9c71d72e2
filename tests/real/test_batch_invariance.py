"""A trained model in `batch_invariant`: the same bits alone, in a batch and in chunks."""

from __future__ import annotations

import pytest
from tests.real.conftest import OPTIONS

from inferno import LLM, SamplingParams

pytest.importorskip("inferno_cpu._native", reason="needs native kernels")

TEXTS = ["The capital of France is", "Once upon a time, in a village by the sea,", "1, 2, 3, 5, 8,"]
DRAWN = SamplingParams(temperature=0.8, seed=1, max_tokens=12, logprobs=2)


def answers(llm: LLM, texts: list[str]) -> list[tuple[object, object]]:
    outputs = llm.generate(texts, DRAWN)
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs]


@pytest.mark.slow
def test_answers_are_the_same_bits_alone_in_a_batch_and_in_chunks(gguf_file: str) -> None:
    options = {**OPTIONS, "max_model_len": 512, "max_num_seqs": 4, "batch_invariant": True}
    with LLM(gguf_file, **options) as llm:
        alone = [answers(llm, [text])[0] for text in TEXTS]
        assert answers(llm, TEXTS) == alone, "in a batch, with prefixes from the cache"
    with LLM(gguf_file, **{**options, "max_num_batched_tokens": 4, "threads": 2}) as llm:
        assert answers(llm, TEXTS) == alone, "in chunks, with two threads"
