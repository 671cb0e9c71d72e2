"""Ranks that share a model of each scheme: the tokens are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import WriteOptions
from inferno.testing.ranks import GREEDY, SEEDED, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels
from inferno_convert.convert import convert

PROMPTS = [[207, 932, 879], list(range(30, 70)), [5]]
SCHEMES: dict[str, dict[str, Any]] = {
    "gptq-int4": {"group": 32},
    "awq-int4": {"group": 32},
    "compressed-tensors": {"group": 32},
    "fp8": {},
    "q8_0": {},
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


def same_tokens(path: Path, catalog: Catalog, ranks: int) -> None:
    found = []
    for count in (1, ranks):
        engine = load_shared(path, catalog, count)
        found.append([tokens_of(answers(engine, PROMPTS, each)) for each in (GREEDY, SEEDED)])
        shares = engine.plan.ranks
        assert shares is None or shares.divided
        engine.close()
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_ranks_give_the_tokens_of_one_process(
    scheme: str, catalog: Catalog, tmp_path: Path
) -> None:
    path = tmp_path / ("toy.gguf" if scheme == "q8_0" else "toy")
    convert("demo", scheme, path, WriteOptions(**SCHEMES[scheme]))
    same_tokens(path, catalog, 2)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_columns_in_another_order_are_gathered(
    ranks: int, catalog: Catalog, tmp_path: Path
) -> None:
    """GPTQ with act-order: ranks take the inputs of all, and compute some outputs."""
    text = tmp_path / "text.txt"
    text.write_text("The columns of the largest activations come first. " * 40)
    path, options = tmp_path / "toy", WriteOptions(group=32, act_order=True)
    convert("demo", "gptq-int4", path, options, calibrate=text)
    g_idx = load_file(path / "model.safetensors")["model.layers.0.mlp.down_proj.g_idx"]
    assert (g_idx.diff() < 0).any(), "columns are in another order"
    same_tokens(path, catalog, ranks)
