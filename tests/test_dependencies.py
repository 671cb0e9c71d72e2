"""What `inferno` needs of other projects, and which of its rooms need it.

The server's libraries are imported by the server alone, the command line's by the command line, and
what runs models stays with few.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from tests.sources import imports_in

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "inferno"
KERNEL = {
    "attrs",
    "cattrs",
    "huggingface-hub",
    "jinja2",
    "msgspec",
    "numpy",
    "pluggy",
    "pyzmq",
    "tokenizers",
    "torch",
    "transformers",
}
"""What runs models, from a reference to text."""
CLI = {"click", "httpx", "markdown-it-py", "prompt-toolkit", "rich", "rich-click"}
SERVER = {"httptools", "litestar", "prometheus-client", "uvicorn", "uvloop"}
TESTING = {"hypothesis", "pytest", "safetensors"}
OTHERS = {"cli": CLI, "server": SERVER, "testing": TESTING | {"litestar"}}
"""What rooms may import beside the kernel's."""
NOT_DECLARED = {
    "server": {"opentelemetry"},
    "testing": {"gguf", "PIL"},
    **dict.fromkeys(("configs", "contracts", "llm"), {"PIL"}),
    "images": {"PIL", "soundfile", "soxr"},
}
"""Imported where it is installed: traces, Pillow and what reads audio are extras, GGUF a plugin
that brings the library. Outside of the images' own room, Pillow is imported for types only."""
NOT_IMPORTED = {"inferno-index", "uvloop"}
"""A plugin, found by its entry point; uvicorn's loop, which it takes where it is installed."""
MODULES = {"pyzmq": "zmq", "markdown-it-py": "markdown_it"}
"""Modules that are not called as their distribution is."""
MOST = 13
"""Distributions that what runs models may need."""


def name_of(requirement: str) -> str:
    """The normalized name of the distribution that is required."""
    name = re.match(r"[\w.-]+", requirement)
    assert name
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def declared() -> dict[str, set[str]]:
    """Names of the required distributions, by extra; "" for what every installation has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: set(map(name_of, lines)) for extra, lines in groups.items()}


def module_of(distribution: str) -> str:
    return MODULES.get(distribution, distribution.replace("-", "_"))


def imported(path: Path) -> Iterator[str]:
    """Top-level modules of other projects that a module imports, in functions and for types too."""
    for node, _ in imports_in(path):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = [alias.name for alias in node.names]
        yield from {name.partition(".")[0] for name in names} - {"inferno"} - STANDARD


STANDARD = {*sys.stdlib_module_names, "__future__"}


def test_every_declared_distribution_has_its_rooms() -> None:
    assert declared()[""] == KERNEL | CLI | SERVER | NOT_IMPORTED
    assert declared()["testing"] == TESTING


def test_what_runs_models_needs_few_distributions() -> None:
    assert len(KERNEL) <= MOST


def test_rooms_import_what_is_theirs() -> None:
    wrong = []
    for path in sorted(SRC.rglob("*.py")):
        room = path.relative_to(SRC).parts[0]
        known = {*map(module_of, KERNEL | OTHERS.get(room, set())), *NOT_DECLARED.get(room, set())}
        wrong += [f"{path.relative_to(SRC)}: {name}" for name in set(imported(path)) - known]
    assert wrong == [], "import it in the room that has it, or hand the value in"


def test_nothing_is_declared_that_no_module_imports() -> None:
    names = {name for path in SRC.rglob("*.py") for name in imported(path)}
    needed = declared()[""] | declared()["testing"]
    assert {d for d in needed if module_of(d) not in names} == NOT_IMPORTED


PYTHON_API = """
import sys
from inferno import LLM, SamplingParams
with LLM("demo") as llm:
    params = SamplingParams(max_tokens=4, temperature=0)
    llm.generate(["def gcd"], params)
    llm.chat([{"role": "user", "content": "What does math.gcd do?"}], params)
"""
COMMAND = """
import sys
sys.argv = ["inferno", "generate", "demo", "--prompt", "def gcd", "--max-tokens", "4"]
from inferno.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "code, allowed", [(PYTHON_API, KERNEL), (COMMAND, KERNEL | CLI)], ids=["LLM", "generate"]
)
def test_a_run_imports_only_declared_distributions_and_none_of_the_server(
    code: str, allowed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all processes of the run: Python lists each import of each on stderr. torch and the
    tokenizer bring more with them; it is asked of them, and not of us."""
    pytest.importorskip("inferno_demo", reason="needs inferno-demo")
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    tops = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert {"torch", "tokenizers", "inferno"} <= tops  # both processes were listed
    providers = metadata.packages_distributions()
    names = {name_of(d) for top in tops for d in providers.get(top, ())}
    ours = {d for d in names if d == "inferno" or d.startswith("inferno-")}
    direct = declared()[""] | declared()["testing"]
    assert (names - ours) & direct <= allowed
    assert names - ours <= closure(allowed)


def closure(names: set[str]) -> set[str]:
    """The distributions, and what they require on this machine, directly or not."""
    from packaging.requirements import Requirement

    waiting, members = [*names], set[str]()
    while waiting:
        name = waiting.pop()
        if name in members:
            continue
        members.add(name)
        for line in metadata.requires(name) or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(name_of(need.name))
    return members


@pytest.mark.parametrize("group", ["imports", "tests"])
def test_what_is_skipped_without_a_distribution_exists(group: str) -> None:
    """Names in `needs.toml`: of tests, and of distributions of this repository."""
    ours = {path.parent.name for path in ROOT.glob("plugins/*/*/pyproject.toml")}
    for name, needed in tomllib.loads((ROOT / "tests/needs.toml").read_text())[group].items():
        path, _, test = name.partition("::")
        assert (ROOT / "tests" / path).exists(), name
        if test:
            source = (ROOT / "tests" / path).read_text()
            assert f"def {test.partition('[')[0]}(" in source, name
        assert needed and set(needed) <= ours, name
