"""Log-probabilities beside transformers' float32 of the same file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exactness import WINDOW, Expected, logprobs_of, perplexity, rms
from float32 import Reference
from tests.real.conftest import OPTIONS

from inferno import LLM

EXACT, ROUNDED = 1.005, 1.01


@pytest.mark.slow
def test_the_stored_reference_is_what_the_file_gives(
    expected: Expected, reference: Reference
) -> None:
    """Of a window and of the long text, as far as it is computed quickly."""
    for number in (0, -1):
        now = reference.logprobs(expected.texts[number][:200])
        np.testing.assert_allclose(now, expected.logprobs[number][:199], atol=2e-3)


@pytest.mark.parametrize(
    "options, length, most",
    [
        pytest.param({"dtype": "float32"}, 512, EXACT, id="float32"),
        pytest.param({"dtype": "bfloat16"}, 8000, EXACT, id="bfloat16 long"),
        pytest.param({"dtype": "float16"}, 2048, EXACT, id="float16 long"),
        pytest.param({"dtype": "float32"}, 2048, EXACT, id="float32 long"),
        pytest.param({"kv_cache_dtype": "int8"}, 2048, ROUNDED, id="int8 cache long"),
        pytest.param({"kv_cache_dtype": "fp8"}, 2048, ROUNDED, id="fp8 cache long"),
    ],
)
@pytest.mark.slow
def test_perplexity_is_float32s(
    options: dict[str, Any], length: int, most: float, gguf_file: str, expected: Expected
) -> None:
    """On eight windows of 512 tokens, and on the beginning of the long text: with 8000 tokens, on
    its first 2048 too. All lengths for all types, which would take minutes, are in
    `benchmarks/exactness.py`."""
    texts, theirs = list(expected.texts[:-1]), expected.logprobs[:-1]
    if length > WINDOW:
        texts.append(expected.texts[-1][:length])
    with LLM(gguf_file, max_model_len=length + 1, **{**OPTIONS, **options}) as llm:
        ours = logprobs_of(llm, texts)
    assert all(np.isfinite(each).all() for each in ours)
    windows = ours[: len(theirs)]
    ratios = {WINDOW: perplexity(windows) / perplexity(theirs)}
    for end in sorted({min(2048, length), length} - {WINDOW}):
        parts = [each[-1][: end - 1] for each in (ours, expected.logprobs)]
        ratios[end] = perplexity(parts[:1]) / perplexity(parts[1:])
    deviation = rms(windows, theirs)
    assert all(1 / most < ratio < most for ratio in ratios.values()), (ratios, deviation)
    assert deviation < RMS[next(iter(options.values()))], (ratios, deviation)


RMS = {"bfloat16": 0.085, "float16": 0.07, "float32": 0.07, "int8": 0.097, "fp8": 0.16}
"""The most that log-probabilities may differ, root mean square, 8 % above what they do: activations
that are rounded to 8 bits before the products with Q4_1 are 0.06 of it."""
