"""Every scheme that `--isq` and `inferno convert` offer, on a trained model: its perplexity beside
that of the dense matrices, which are those that the file's Q4_1 says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exactness import Expected, logprobs_of, perplexity
from tests.real.conftest import OPTIONS

from inferno import LLM
from inferno.catalog import load_catalog
from inferno.testing.alike import alike
from inferno_convert.convert import convert

MOST = {
    "q8_0": 1.01,
    "gptq-int8": 1.02,
    "fp8": 1.05,
    "q6_k": 1.02,
    "q5_k_m": 1.15,
    "q5_k_s": 1.15,
    "q5_k": 1.15,
    "q5_1": 1.17,
    "q5_0": 1.10,
    "q4_k_m": 1.12,
    "q4_k_s": 1.12,
    "q4_k": 1.12,
    "q4_1": 1.01,
    "int4_g32": 1.01,
    "int4_g64": 1.25,
    "int4_g128": 1.35,
    "awq-int4": 1.30,
    "iq4_nl": 1.20,
    "gptq-int4": 1.40,
    "compressed-tensors": 1.40,
    "q4_0": 1.40,
    "q3_k": 1.25,
    "q3_k_l": 1.25,
    "q3_k_m": 1.25,
    "q3_k_s": 1.65,
    "q2_k": 1.65,
}
"""The most that a scheme may multiply the perplexity of 512 tokens by, about 4 % above what it
does: matrices in Q4_1 are exact in types with as many steps of the same size, and further from Q5_1
than from Q5_0. Those that are not here keep every value, in bfloat16 or more."""
KEPT = 1.005

SCHEMES = [
    offer.item.name
    for offer in load_catalog().of("inferno_quant_schemes")
    if offer.item.pack is not None
]
WRITERS = [
    name
    for offer in load_catalog().of("inferno_writers")
    if (name := offer.item.name) in ("q8_0", "fp8")
    or not (name in SCHEMES or name.endswith(("_s", "_l")))
]
"""GGUF's other types are encoded as `--isq` does, and its small and large mixes as the medium
ones."""


DAILY = {"int4_g64", "fp8", "q8_0", "iq4_nl", "q4_k"}
"""One scheme of each kind of kernel and encoding. The others differ in sizes of groups and in which
matrix has which type, and are slow together."""


def marked(names: list[str]) -> list[Any]:
    assert {*names} >= DAILY, DAILY - {*names}
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in DAILY else slow) for name in names]


def scored(ref: str, expected: Expected, **options: Any) -> float:
    """The perplexity of a window."""
    with LLM(ref, max_model_len=520, **{**OPTIONS, "memory": "2GiB", **options}) as llm:
        logprobs = logprobs_of(llm, expected.texts[:1])
    assert all(np.isfinite(each).all() for each in logprobs)
    return perplexity(logprobs)


@pytest.fixture(scope="session")
def exact(expected: Expected) -> float:
    return perplexity(expected.logprobs[:1])


@alike
@pytest.mark.parametrize("name", marked(SCHEMES))
def test_quantizing_while_loading_costs_what_the_scheme_does(
    name: str, dense: str, expected: Expected, exact: float
) -> None:
    ratio = scored(dense, expected, isq=name) / exact
    assert 0.98 < ratio < MOST[name], ratio


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_predicts_as_its_scheme_does(
    name: str, gguf_file: str, expected: Expected, exact: float, tmp_path: Path
) -> None:
    convert(gguf_file, name, tmp_path / "model.gguf", requantize=True)
    ratio = scored(str(tmp_path / "model.gguf"), expected) / exact
    assert 0.98 < ratio < MOST.get(name, KEPT), ratio
