"""What the command line answers to names and values that are almost right."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from inferno.cli import cli


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "SmolLM2-135M.Q4_1.gguf").touch()
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)


def said(*args: str) -> str:
    result = CliRunner().invoke(cli, ["explain", *args])
    assert result.exit_code in (2, 3)
    return result.stderr


@pytest.mark.parametrize("ref", ["./nope.gguf", "nope.gguf", "/no/such/model", "models/x/"])
def test_what_looks_like_a_path_is_no_such_file(ref: str) -> None:
    assert said(ref).startswith(f"Error: no such file: {ref}\n")


def test_a_file_that_is_spelt_almost_so_is_suggested() -> None:
    assert "Did you mean SmolLM2-135M.Q4_1.gguf?" in said("./smollm2-135m.Q4_0.gguf")
    assert "There is no folder nowhere either" in said("./nowhere/x.gguf")


@pytest.mark.parametrize(
    ("ref", "near"),
    [("dmo", "Did you mean demo?"), ("smollm2", "Did you mean SmolLM2-135M.Q4_1.gguf?")],
)
def test_a_model_that_is_spelt_almost_so_is_suggested(ref: str, near: str) -> None:
    assert near in said(ref)


def test_the_hub_is_where_other_names_are_found() -> None:
    text = said("mistral")
    assert "OWNER/mistral" in text and "huggingface.co/models?search=mistral" in text


@pytest.mark.parametrize(
    ("name", "near"),
    [("foo", "Proposers: mtp, ngram. A draft model is"), ("ngrm", "Did you mean ngram?")],
)
def test_drafts_come_from_a_proposer_or_a_model(name: str, near: str) -> None:
    text = said("demo", "--speculative", name)
    assert f"--speculative {name} is neither a proposer nor a model" in text and near in text


def test_the_error_of_an_option_has_the_words_of_its_help() -> None:
    shown = CliRunner().invoke(cli, ["explain", "--help"], env={"COLUMNS": "200"}).stdout
    assert "auto, fp8 or int8" in shown
    assert "Known: auto, fp8, int8." in said("demo", "--kv-cache-dtype", "int4")
