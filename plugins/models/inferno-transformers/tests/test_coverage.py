"""What `tools/architectures.json` says of architectures is what the fallback does: the
documentation has a table of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "coverage.py"


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_of_types", TOOL)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def states(coverage: ModuleType) -> dict[str, str]:
    table: dict[str, str] = json.loads(coverage.ARCHITECTURES.read_text("utf-8"))["fallback"]
    return table


@pytest.mark.parametrize(
    "name",
    [
        "InternLM3ForCausalLM",  # transformers computes it with a class of another name
        "BloomForCausalLM",
        "DbrxForCausalLM",  # by its published fields: transformers' defaults build no model
        "GPTJForCausalLM",
        "MiniMaxForCausalLM",
        "MPTForCausalLM",  # spelt otherwise than transformers' class
        pytest.param("MambaForCausalLM", marks=pytest.mark.slow),
        "RWForCausalLM",  # an old class, declared by this plugin
        "XverseForCausalLM",
        "Zamba2ForCausalLM",
    ],
)
def test_an_architecture_is_in_the_state_that_the_table_says(
    name: str, coverage: ModuleType, states: dict[str, str]
) -> None:
    assert coverage.state(name) == states[name]


def test_every_state_of_the_table_was_found(states: dict[str, str]) -> None:
    assert states and not [name for name, state in states.items() if not state.strip()]
    assert {"runs"} < set(states.values())
