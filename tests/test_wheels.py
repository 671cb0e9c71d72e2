"""`pip install inferno inferno-qwen3` gives a working engine and server: from wheels, in an empty
environment, without the clone. What is another distribution's is named.

The environment sees the packages that our distributions declare, and theirs, linked from the
environment of the tests: nothing is downloaded twice, and what is used but not declared is missing,
as it would be for a user.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PLUGINS = ROOT / "plugins"
PROJECTS = [
    ROOT,
    PLUGINS / "models" / "inferno-qwen3",
    PLUGINS / "models" / "inferno-demo",
    PLUGINS / "kernels" / "inferno-cpu",
    PLUGINS / "index" / "inferno-index",
]
NAMES = ["inferno", "inferno-qwen3", "inferno-demo", "inferno-cpu"]
"""What is asked for. `inferno` brings `inferno-index`."""
COMMANDS = {
    "convert": "inferno-convert",
    "eval": "inferno-eval",
    "gpu-report": "inferno-gpu-report",
    "verify": "inferno-verify",
    "package": "inferno-convert",
}
PATHS = {
    "/api/chat": "inferno-ollama",
    "/api/generate": "inferno-ollama",
    "/api/tags": "inferno-ollama",
    "/v1/messages": "inferno-anthropic",
    "/v1/messages/count_tokens": "inferno-anthropic",
    "/generate": "inferno-sglang",
    "/update_weights_from_disk": "inferno-sglang",
    "/completion": "inferno-llamacpp",
    "/infill": "inferno-llamacpp",
    "/apply-template": "inferno-llamacpp",
    "/props": "inferno-llamacpp",
    "/slots": "inferno-llamacpp",
}
"""What left `inferno`: commands and paths of the server, and the distribution that has each."""


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
    folder = wheels["inferno"].parent
    _run(*pip, "install", "-q", "--no-index", "--find-links", str(folder), *NAMES)
    _run(*pip, "check")
    return env / "bin"


def test_wheels_carry_types_and_data(wheels: dict[str, Path]) -> None:
    names = {project: set(zipfile.ZipFile(wheel).namelist()) for project, wheel in wheels.items()}

    for project, files in names.items():
        assert f"{project}/py.typed" in files
        assert not [name for name in files if name.startswith(("tests/", "src/"))]
    assert any(name.endswith(".safetensors") for name in names["inferno_demo"])
    page = {f"inferno/server/page/{name}" for name in ("markdown-it.js", "markdown-it.LICENSE")}
    assert page <= names["inferno"]
    assert wheels["inferno_demo"].stat().st_size <= 10_000_000


def test_the_installed_demo_model_answers(bin: Path, tmp_path: Path) -> None:
    prompt = ["--prompt", "What does math.gcd do?", "--temperature", "0", "--max-tokens", "16"]
    done = _run(str(bin / "inferno"), "generate", "demo", *prompt, cwd=tmp_path)
    assert re.search(r"\w", done.stdout), done.stderr


def test_only_what_was_installed_is_there(bin: Path, tmp_path: Path) -> None:
    listed = json.loads(_run(str(bin / "inferno"), "plugins", "--json", cwd=tmp_path).stdout)
    assert {plugin["distribution"] for plugin in listed} == {*NAMES, "inferno-index"}
    where = _run(
        str(bin / "python"), "-c", "import inferno; print(inferno.__file__)", cwd=tmp_path
    ).stdout
    assert where.startswith(str(bin.parent))


@pytest.mark.parametrize("name, distribution", COMMANDS.items())
def test_a_command_of_another_distribution_names_it(
    bin: Path, tmp_path: Path, name: str, distribution: str
) -> None:
    done = _done(str(bin / "inferno"), name, "demo", cwd=tmp_path)
    assert done.returncode == 2
    message = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())
    assert f"No such command '{name}'. Try `pip install {distribution}`." in message


@pytest.fixture(scope="module")
def server(bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The installed server, with the demo model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("served")
    command = [str(bin / "inferno"), "serve", "demo", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=_environ(), stdout=log, stderr=log)
    try:
        yield Server(f"http://127.0.0.1:{port}", folder / "log", process)
    finally:
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_the_installed_server_answers(server: Server) -> None:
    """With the native kernels of the wheel."""
    question = {"role": "user", "content": "What does math.gcd do?"}
    body = {"model": "demo", "messages": [question], "temperature": 0, "max_tokens": 16}
    status, answer = server.ask("/v1/chat/completions", body)
    assert status == 200, server.log.read_text()
    assert re.search(r"\w", answer["choices"][0]["message"]["content"])
    assert "kernels" in server.log.read_text()


@pytest.mark.parametrize("path, distribution", PATHS.items())
def test_a_path_of_another_distribution_names_it(
    server: Server, path: str, distribution: str
) -> None:
    bodies: tuple[dict[str, Any] | None, ...] = ({}, None)
    for body in bodies:
        status, answer = server.ask(path, body)
        assert status == 404
        message = answer["error"]["message"]
        assert f"There is no {path} here. Try `pip install {distribution}`." in message


class Server(NamedTuple):
    """A server's URL, the file of its log, and its process."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def ask(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Any]:
        """Return the status and the JSON of the answer, once the server is healthy. GET if there is
        no body."""
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=10).close()
                break
            except OSError:
                time.sleep(0.2)
        headers = {"content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def _environ() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def _done(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=_environ())


def _run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = _done(*command, cwd=cwd)
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
    pairs: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        for extra in {"", *wanted.extras}:
            if name in ours or (name, extra) in pairs:
                continue
            pairs.add((name, extra))
            needs = map(Requirement, metadata.distribution(name).requires or ())
            waiting += [
                need for need in needs if not need.marker or need.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in pairs}
