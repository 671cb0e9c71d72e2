"""openvino-genai's continuous batching, on the intermediate representation that optimum-intel
writes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter

import numpy as np
import openvino
import openvino_genai as genai
from worker import CACHE_GIGABYTES, KEEPS, MAX_MODEL_LEN, MAX_NUM_SEQS, THREADS, serve

scheduling = genai.SchedulerConfig()
scheduling.max_num_batched_tokens, scheduling.max_num_seqs = MAX_MODEL_LEN, MAX_NUM_SEQS
scheduling.cache_size, scheduling.enable_prefix_caching, scheduling.dynamic_split_fuse = (
    CACHE_GIGABYTES,
    KEEPS,
    True,
)
capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
properties: dict[str, object] = {"INFERENCE_NUM_THREADS": THREADS}
if "BF16" in capabilities:
    properties["INFERENCE_PRECISION_HINT"] = "bf16"
pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduling, "CPU", properties)


def seconds(prompts: Sequence[list[int]], new_tokens: int) -> float:
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = new_tokens
    config.ignore_eos, config.do_sample = True, False
    inputs = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
    start = perf_counter()
    outputs = pipeline.generate(inputs, [config] * len(inputs))
    total = perf_counter() - start
    assert sum(len(output.m_generation_ids[0]) for output in outputs) == new_tokens * len(prompts)
    return total


def generate(prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
    # It tells no times of its own here, so a prompt alone is computed once more, for one token.
    first = seconds(prompts, 1) if len(prompts) == 1 and new_tokens > 1 else 0.0
    return first, seconds(prompts, new_tokens)


serve("openvino-genai", generate, lambda: " ".join(capabilities))
