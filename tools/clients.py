"""Makes the environments of the clients in `tests/acceptance`: one for each Python client, as some
pin the versions of others, and one folder of node modules.

    python tools/clients.py FOLDER [NAME...]
    INFERNO_CLIENTS=FOLDER pytest tests/acceptance

What is there already is left alone. A client that the package registries do not have is reported,
and its tests are skipped.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

PYTHON = {
    "openai": ("openai", "pydantic"),
    "anthropic": ("anthropic",),
    "ollama": ("ollama",),
    "langchain-openai": ("langchain-openai", "langchain-anthropic", "langchain-ollama"),
    "litellm": ("litellm", "mcp"),
    "pydantic-ai": ("pydantic-ai",),
    "instructor": ("instructor",),
    "llm": ("llm",),
    "lm-eval": ("lm-eval[api]", "transformers"),
    "schemathesis": ("schemathesis",),
}
"""By the environment's name: what is installed. The first package has the name that tests look
for."""
NODE = ("openai", "zod")


def make_python(folder: Path, name: str) -> str:
    """Make a client's environment. Returns what happened."""
    target = folder / name
    if (target / "ready").exists():
        return "is there"
    venv.create(target, with_pip=True, clear=True)
    command = [str(target / "bin" / "python"), "-m", "pip", "install", "-q", *PYTHON[name]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(target)
        return f"does not install: {done.stderr.strip().splitlines()[-1]}"
    (target / "ready").touch()
    return "installed"


def make_node(folder: Path) -> str:
    """Install the node modules. Returns what happened."""
    target = folder / "node"
    if all((target / "node_modules" / name).is_dir() for name in NODE):
        return "is there"
    npm = shutil.which("npm")
    if npm is None:
        return "needs npm (on Debian: apt install npm)"
    target.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(target), *NODE]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"does not install: {done.stderr[-300:]}" if done.returncode else "installed"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"Of {', '.join([*PYTHON, 'node'])}; all if none")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {*PYTHON, "node"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.names or (*PYTHON, "node"):
        state = make_node(options.folder) if name == "node" else make_python(options.folder, name)
        failed += "install" in state and state != "installed"
        print(f"{name}: {state}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
