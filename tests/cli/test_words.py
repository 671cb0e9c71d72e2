"""What the command line answers to names and values that are almost right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from inferno.cli import cli
from inferno.cli.chat_commands import COMMANDS
from inferno.cli.lines import wrapped


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


@pytest.mark.parametrize("ref", ["a/" * 5000, "x" * 5000, "~nobody-has-this-name/x"])
def test_what_no_file_can_be_called_is_no_model(ref: str) -> None:
    text = said(ref)
    assert text.startswith(("Error: no such file", "Error: no model")) and len(text) < 2000


def test_a_file_that_is_spelt_almost_so_is_suggested() -> None:
    assert "Did you mean SmolLM2-135M.Q4_1.gguf?" in said("./smollm2-135m.Q4_0.gguf")
    assert "There is no folder nowhere either" in said("./nowhere/x.gguf")


@pytest.mark.parametrize(
    ("ref", "near"),
    [("dmo", "Did you mean demo?"), ("smollm2", "Did you mean SmolLM2-135M.Q4_1.gguf")],
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str) -> None:
    script = CliRunner().invoke(cli, ["completion", shell]).stdout
    assert "_INFERNO_COMPLETE" in script and f"inferno completion {shell} >" in script
    assert shell != "zsh" or script.startswith("#compdef inferno\n")
    if path := shutil.which(shell):
        subprocess.run([path, "-n"], input=script, text=True, check=True)


def test_commands_and_options_are_completed() -> None:
    def completed(words: str) -> list[str]:
        extra = {"_INFERNO_COMPLETE": "bash_complete", "COMP_WORDS": words}
        extra["COMP_CWORD"] = str(len(words.split()) - 1)
        command = [sys.executable, "-m", "inferno"]
        done = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("inferno ge") == ["generate"]
    assert "--max-tokens" in completed("inferno chat --max-")


@pytest.mark.parametrize("width", [60, 75, 90])
def test_lines_wrap_between_words(width: int) -> None:
    text = "  kernels  " + "linear bfloat16, rms_norm, add_rms_norm " * 6
    lines = wrapped(text, width, 11).splitlines()
    assert lines[0].startswith(text[:30])
    assert len(lines) > 2 and all(len(line) <= width for line in lines)
    assert all(line.startswith(" " * 11) for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert wrapped(text, None) == text, "a pipe gets whole lines"


def test_help_in_a_chat_names_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr("rich_click.echo", lambda text, err: texts.append(text))
    COMMANDS["/help"].run(None, "")  # type: ignore[arg-type]
    words = "\n".join(texts).replace(",", " ").split()
    assert set(COMMANDS) <= set(words)
