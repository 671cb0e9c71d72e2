"""With `batch_invariant`, tokens and their log-probabilities are the same bits, whatever else is in
the batch, however a prompt is cut, whatever was cached, and with any number of threads.

The kit tests it of every architecture (`testing/batch_invariance.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_stored_caches import load, toy_of

from inferno.core.engine import Engine
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.alike import alike

pytest.importorskip("inferno_cpu._native", reason="needs native kernels")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("demo", {"dtype": "float32"}),
    "bfloat16": ("demo", {"dtype": "bfloat16"}),
    "q8_0": ("demo", {"dtype": "float32", "isq": "q8_0"}),
    "q4_k": ("demo", {"dtype": "float32", "isq": "q4_k"}),
    "an int8 cache": ("demo", {"dtype": "float32", "kv_cache_dtype": "int8"}),
    "windows between": ("gemma:TestGemma3", {"dtype": "float32"}),
}
PROMPTS = [[5 + (7 * i + 3 * s * i * i) % 90 for i in range(30 + 7 * s)] for s in range(1, 8)]
DRAWN = SamplingParams(temperature=0.8, seed=3, max_tokens=6, ignore_eos=True, logprobs=3)


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[Any]]:
    """Tokens with the log-probabilities of the likeliest ones, of prompts that run together."""
    for i, prompt in enumerate(prompts):
        engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=DRAWN))
    draws: dict[str, list[Any]] = {str(i): [] for i in range(len(prompts))}
    while engine.busy:
        for output in engine.step():
            scored = output.logprobs
            assert scored is not None
            draws[output.request_id].append((output.token_id, scored.logprob, scored.top))
    return list(draws.values())


@alike
@pytest.mark.parametrize("name", CASES)
def test_a_request_gets_the_same_bits_in_any_company(name: str, tmp_path: Path) -> None:
    model, options = CASES[name]
    ref = toy_of(model, tmp_path / "toy")
    options = {**options, "max_num_seqs": 7, "packed_cache": "none", "batch_invariant": True}
    engine = load(ref, **options)
    alone = [answers(engine, [prompt])[0] for prompt in PROMPTS]
    for size in (2, 7):
        assert answers(engine, PROMPTS[:size]) == alone[:size], "together, and from the cache"
    engine.close()
    for changes in (
        {"threads": 2, "max_num_batched_tokens": 600},
        {"max_num_batched_tokens": 9, "block_size": 32},
        {"speculative": "ngram"},
    ):
        engine = load(ref, **{**options, **changes})
        assert answers(engine, PROMPTS) == alone, changes
        engine.close()
