"""The index names distributions that exist, for what they provide."""

from __future__ import annotations

from pathlib import Path

from inferno_index import inferno_hints

PLUGINS = Path(__file__).parents[3]


def test_every_distribution_it_names_is_of_this_repository() -> None:
    here = {path.parent.name for path in PLUGINS.glob("*/*/pyproject.toml")}
    named = {hint.distribution for hint in inferno_hints() if hint.distribution}
    assert named <= here


def test_what_nothing_has_has_a_remedy() -> None:
    others = {hint.name: hint.remedy for hint in inferno_hints() if not hint.distribution}
    assert "xFormers is retired" in others["xformers"]


def test_a_thing_of_one_kind_and_name_has_one_distribution() -> None:
    names = [(hint.kind, hint.name) for hint in inferno_hints()]
    assert len(names) == len(set(names))


def test_an_architecture_is_found_by_either_of_its_names() -> None:
    hints = {(hint.kind, hint.name): hint.distribution for hint in inferno_hints()}
    assert hints["architecture", "Qwen3ForCausalLM"] == "inferno-qwen3"
    assert hints["architecture", "qwen3"] == "inferno-qwen3"
    assert hints["architecture", "AquilaModel"] == "inferno-llama"
    assert hints["architecture", "*"] == "inferno-transformers"


def test_what_is_no_architecture_is_named_too() -> None:
    hints = {(hint.kind, hint.name): hint.distribution for hint in inferno_hints()}
    assert hints["format", "gguf"] == hints["scheme", "q8_0"] == "inferno-gguf"
    assert hints["scheme", "mxfp4"] == "inferno-mxfp4"
    assert hints["kernels", "cpu"] == hints["attention", "cpu"] == "inferno-cpu"
    assert hints["model", "demo"] == "inferno-demo"
