"""The command starts fast: help and listings import nothing heavy, and every command is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "{'torch', 'transformers', 'litestar', 'huggingface_hub', 'numpy'}"
COMMANDS = ["serve", "chat", "generate", "bench", "explain", "plugins", "pull"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "inferno", *args], capture_output=True, text=True)


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["plugins"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_and_listings_import_nothing_heavy(args: list[str]) -> None:
    code = (
        f"import sys; sys.argv[1:] = {args!r}\nfrom inferno.cli import main\n"
        f"try: main()\nfinally: print('heavy:', {HEAVY} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "heavy: set()" in done.stderr


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert [name for name in COMMANDS if name not in done.stdout] == []


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    done = run("sevre")
    assert done.returncode == 2
    assert "serve" in done.stderr


def test_a_misspelt_flag_is_answered_with_the_nearest() -> None:
    done = run("generate", "--max-model-length", "8")
    assert done.returncode == 2
    assert "--max-model-len" in done.stderr
