"""Ranks that share a trained model: its layers, its 9 heads over 3, and blocks of 32 columns."""

from __future__ import annotations

from typing import Any

import pytest

from inferno.catalog import load_catalog
from inferno.request.sampling_params import SamplingParams
from inferno.testing.thread_ranks import answers, load_shared, tokens_of
from inferno.testing.tiny import torch_only

PROMPTS = [[1, 4093, 198, 1780, 314, 260, 2450, 282, 5447, 47], [504, 3857, 282, 4649]]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.mark.slow
def test_three_ranks_give_the_tokens_of_one_process_in_float32(gguf_file: str) -> None:
    """With two, its heads are not divided, but its MLPs and its vocabulary."""
    runs = []
    for ranks in (1, 2, 3):
        engine = load_shared(gguf_file, torch_only(), ranks, threads=1, memory="4GiB")
        shares = engine.plan.ranks
        assert shares is None or shares.shard.unit == 32
        assert shares is None or bool(shares.whole) == (ranks == 2)
        runs.append(tokens_of(answers(engine, PROMPTS, PARAMS)))
        engine.close()
    assert runs[0] == runs[1] == runs[2]


def test_two_stages_give_the_tokens_of_one_process(gguf_file: str) -> None:
    """With the native kernels: nothing is summed in another order."""
    pytest.importorskip("inferno_cpu")
    given: dict[str, Any] = {"threads": 1, "memory": "4GiB", "packed_cache": "none"}
    runs = []
    for stages in (1, 2):
        engine = load_shared(gguf_file, load_catalog(), 1, pp=stages, **given)
        runs.append(tokens_of(answers(engine, PROMPTS, PARAMS)))
        engine.close()
    assert runs[0] == runs[1]
