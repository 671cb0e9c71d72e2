"""`pip install . ./plugins/models/inferno-qwen3` gives a working engine: from wheels, in an empty
environment.

The environment sees the packages that our distributions declare, and theirs, linked from the
environment of the tests: nothing is downloaded twice, and what is used but not declared is missing,
as it would be for a user.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "plugins" / "models"
PROJECTS = [ROOT, MODELS / "inferno-qwen3", MODELS / "inferno-demo"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    _run(*command, *map(str, PROJECTS))
    return {wheel.name.split("-")[0]: wheel for wheel in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def bin(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with our wheels and what they declare."""
    env = tmp_path_factory.mktemp("env")
    _run(sys.executable, "-m", "venv", "--without-pip", str(env))
    (site,) = env.glob("lib/python*/site-packages")
    _link_dependencies(site)
    pip = [sys.executable, "-m", "pip", "--python", str(env / "bin" / "python")]
    _run(*pip, "install", "-q", "--no-deps", "--no-index", *map(str, wheels.values()))
    _run(*pip, "check")
    return env / "bin"


def test_wheels_carry_types_and_data(wheels: dict[str, Path]) -> None:
    names = {project: set(zipfile.ZipFile(wheel).namelist()) for project, wheel in wheels.items()}

    for project, files in names.items():
        assert f"{project}/py.typed" in files
        assert not [name for name in files if name.startswith(("tests/", "src/"))]
    assert any(name.endswith(".safetensors") for name in names["inferno_demo"])
    assert wheels["inferno_demo"].stat().st_size <= 10_000_000


def test_the_installed_demo_model_answers(bin: Path, tmp_path: Path) -> None:
    prompt = ["--prompt", "What does math.gcd do?", "--temperature", "0", "--max-tokens", "16"]
    done = _run(str(bin / "inferno"), "generate", "demo", *prompt, cwd=tmp_path)
    assert re.search(r"\w", done.stdout), done.stderr


def test_only_what_was_installed_is_there(bin: Path, tmp_path: Path) -> None:
    listed = json.loads(_run(str(bin / "inferno"), "plugins", "--json", cwd=tmp_path).stdout)
    assert {plugin["distribution"] for plugin in listed} == {
        "inferno",
        "inferno-qwen3",
        "inferno-demo",
    }
    where = _run(
        str(bin / "python"), "-c", "import inferno; print(inferno.__file__)", cwd=tmp_path
    ).stdout
    assert where.startswith(str(bin.parent))


def _run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")
    }
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


def _link_dependencies(site: Path) -> None:
    for name in _closure():
        distribution = metadata.distribution(name)
        for top in {
            file.parts[0]
            for file in distribution.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }:
            target = Path(str(distribution.locate_file(top)))
            if not (site / top).exists() and target.exists():
                (site / top).symlink_to(target)


def _closure() -> set[str]:
    """Every distribution that our pyproject files ask for, directly or not."""
    declared = [
        tomllib.loads((project / "pyproject.toml").read_text())["project"] for project in PROJECTS
    ]
    ours = {project["name"] for project in declared}
    waiting = [Requirement(line) for project in declared for line in project["dependencies"]]
    found: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        for extra in {"", *wanted.extras}:
            if name in ours or (name, extra) in found:
                continue
            found.add((name, extra))
            needs = map(Requirement, metadata.distribution(name).requires or ())
            waiting += [
                need for need in needs if not need.marker or need.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in found}
