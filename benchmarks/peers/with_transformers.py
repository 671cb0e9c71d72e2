"""transformers' `generate` with its own key/value cache; several prompts as one left-padded
batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria
from worker import THREADS, serve

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
torch.set_num_threads(THREADS)
model: Any = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=DTYPES[sys.argv[2]]).eval()


class Clock(StoppingCriteria):
    """Notes when the first token is there; stops nothing."""

    def __init__(self) -> None:
        self.first = 0.0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.first = self.first or perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool)


@torch.inference_mode()
def generate(prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
    width = max(map(len, prompts))
    token_ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(token_ids)
    for i, prompt in enumerate(prompts):
        token_ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    clock, start = Clock(), perf_counter()
    output = model.generate(
        input_ids=token_ids,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=[clock],
    )
    total = perf_counter() - start
    assert output.shape[1] == width + new_tokens, f"{output.shape[1] - width} tokens"
    return clock.first - start, total


serve("transformers", generate)
