"""The command starts fast: help and listings import nothing heavy, and every command is there."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

HEAVY = {"torch", "transformers", "litestar", "huggingface_hub", "numpy"}
COMMANDS = ["serve", "chat", "generate", "run-batch", "bench", "explain", "plugins", "pull"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "inferno", *args], capture_output=True, text=True)


@cache
def imported_by(*args: str) -> frozenset[str]:
    """The modules that a command has imported at its end."""
    code = (
        f"import sys; sys.argv[1:] = {list(args)!r}\nfrom inferno.cli import main\n"
        "try: main()\nfinally: print('|'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return frozenset(done.stderr.strip().splitlines()[-1].split("|"))


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["plugins"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_and_listings_import_nothing_heavy(args: list[str]) -> None:
    assert not imported_by(*args) & HEAVY


@pytest.mark.parametrize("args", [[], *([name] for name in COMMANDS)])
def test_help_imports_of_inferno_only_what_declares_the_options(args: list[str]) -> None:
    modules = imported_by(*args, "--help")
    ours = {n for n in modules if n.startswith("inferno.") and not n.startswith("inferno.cli.")}
    needed = {
        "inferno.cli",
        "inferno.core",
        "inferno.errors",
        "inferno.core.schedule",
        "inferno.request",
        "inferno.request.processor_calls",
        "inferno.request.sampling_params",
        "inferno.request.structured_outputs",
    }
    # The list of commands asks the plugins that add some, and imports what these declare only.
    for_list = {
        "inferno.catalog",
        "inferno.catalog.architectures",
        "inferno.catalog.catalog",
        "inferno.catalog.choice",
        "inferno.catalog.discovery",
        "inferno.catalog.offers",
        "inferno.catalog.unknown",
        "inferno.catalog.versions",
        "inferno.contracts",
        "inferno.contracts.commands",
        "inferno.contracts.declaration",
        "inferno.contracts.lazy",
        "inferno.errors",
        "inferno.hookspecs",
    }
    assert ours <= (needed | {"inferno.host"} if args else for_list | {"inferno.cli"})
    assert not modules & {"subprocess", "statistics", "asyncio", "inferno.cli.session"}


def test_threads_are_told_to_sleep_before_a_command_runs() -> None:
    """OpenMP reads the variable once, when torch is imported."""
    code = (
        "import os, sys\nfrom inferno import cli\nimport inferno.cli.plugins as plugins\n"
        "os.environ.pop('GOMP_SPINCOUNT', None)\n"
        "plugins.command.callback = lambda **_: "
        "print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)\n"
        "cli.main(['plugins'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["20000", "False"]), done.stderr


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
