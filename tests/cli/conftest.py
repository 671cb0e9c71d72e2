"""Plugins that only the test has, installed as far as Python can tell, and a command line that sees
them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest
from tests.forked import Forks


class Inferno(Protocol):
    """`inferno ARGS`, in a process of its own, in the test's folder; keywords are environment
    variables."""

    def __call__(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder that `inferno` has on its path."""
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


def _environment(site: Path) -> dict[str, str]:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def inferno(forks: Forks, site: Path, tmp_path: Path) -> Inferno:
    """In a fork of a process that has imported the command line."""

    def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return forks.run(args, {**_environment(site), **env}, tmp_path)

    return run


@pytest.fixture
def new_inferno(site: Path, tmp_path: Path) -> Inferno:
    """In a process that has imported nothing before."""

    def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "inferno", *args]
        env = {**_environment(site), **env}
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)

    return run


class Install(Protocol):
    """install(name, code): a plugin of one module, as if pip had installed it."""

    def __call__(self, name: str, code: str) -> None: ...


@pytest.fixture
def install(site: Path) -> Install:
    def install(name: str, code: str) -> None:
        module = name.replace("-", "_")
        (site / f"{module}.py").write_text(code)
        info = site / f"{module}-2.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
        (info / "entry_points.txt").write_text(f"[inferno]\n{name} = {module}\n")

    return install
