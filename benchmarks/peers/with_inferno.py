from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter

from worker import CACHE_GIGABYTES, KEEPS, MAX_MODEL_LEN, MAX_NUM_SEQS, THREADS, serve

from inferno import LLM, SamplingParams

llm = LLM(
    sys.argv[1],
    dtype="bfloat16",
    max_model_len=MAX_MODEL_LEN,
    max_num_seqs=MAX_NUM_SEQS,
    memory=f"{6 + CACHE_GIGABYTES}GiB",
    cache_policy="lru" if KEEPS else "none",
    threads=THREADS,
)


def generate(prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    start = perf_counter()
    if len(prompts) == 1:
        first, count = 0.0, 0
        for delta in llm.stream(prompts[0], params):
            first = first or perf_counter() - start
            count += len(delta.token_ids)
    else:
        outputs = llm.generate(list(prompts), params)
        first, count = 0.0, sum(len(output.outputs[0].token_ids) for output in outputs)
    total = perf_counter() - start
    assert count == new_tokens * len(prompts), f"{count} tokens"
    return first, total


def level() -> str:
    try:
        from inferno_cpu import _native
    except ImportError:
        return "torch"
    return str(_native.selected())


serve("inferno", generate, level)
