"""The documentation says what is so: its code runs, its tables are the software's, its links lead
somewhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from inferno import hookspecs
from inferno.catalog import KINDS
from inferno.server import FIELDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial" / "first-model-plugin.md"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("plugins/*/*/README.md"),
        *ROOT.glob("benchmarks/*.md"),
        *DOCS.rglob("*.md"),
    ]
)
PAGES = [page for page in PAGES if "_build" not in page.parts]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [
        code
        for found, code in _FENCE.findall(page.read_text(encoding="utf-8"))
        if found == language
    ]


def run(command: list[str], cwd: Path, site: Path | None = None) -> str:
    env = {
        **os.environ,
        "PYTEST_ADDOPTS": "",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    env |= {"PYTHONPATH": str(site)} if site else {}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# --- the reference --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_current(generator: ModuleType) -> None:
    stale = [
        page.name for page, text in generator.pages() if page.read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `python docs/generate.py`"


def test_every_hook_and_its_declaration_have_a_section_and_no_other() -> None:
    text = (DOCS / "reference" / "hooks.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(hookspecs.API_VERSIONS)
    for hook, section in sections.items():
        assert f"<!-- begin hook {hook} -->" in section
        assert f"<!-- begin fields contracts {KINDS[hook].__name__} -->" in section


def test_every_field_of_a_declaration_is_explained(generator: ModuleType) -> None:
    for kind in KINDS.values():
        rows = [
            row.split(" | ")
            for row in generator.fields("contracts", kind.__name__).splitlines()[2:]
        ]
        assert [row[0].strip("| `") for row in rows] == [a.name for a in kind.__attrs_attrs__]  # type: ignore[attr-defined]
        assert [row[0] for row in rows if not row[-1].strip("| ")] == []


def test_every_endpoint_with_fields_has_its_table() -> None:
    text = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- begin endpoint (\S+) -->", text)) == set(FIELDS)


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken


def _anchors(page: Path) -> set[str]:
    headings = re.findall(
        r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


# --- code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_can_be_read(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    for code in blocks(page, "sh"):
        subprocess.run(["bash", "-n"], input=code, text=True, check=True)


def test_targets_that_are_named_exist() -> None:
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for page in PAGES:
        named = re.findall(r"^make ([a-z]+)", "\n".join(blocks(page, "sh")), re.MULTILINE)
        assert set(named) <= targets, page


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/first-token.md"])
def test_python_for_beginners_runs(page: str, tmp_path: Path) -> None:
    local = [code for code in blocks(ROOT / page, "python") if "from inferno import" in code]
    assert local
    for code in local:
        assert run([sys.executable, "-c", code], tmp_path).strip()


def test_the_readmes_explain_is_what_explain_says(tmp_path: Path) -> None:
    pytest.importorskip(
        "inferno_cpu._native", reason="without the native kernels it says something else"
    )
    [shown] = [
        text for text in blocks(ROOT / "README.md", "text") if text.startswith("$ inferno explain")
    ]
    said = run(
        [sys.executable, "-m", "inferno", "explain", "demo", "--device", "cpu"], tmp_path
    ).splitlines()
    assert [line for line in shown.splitlines()[1:] if "..." not in line and line not in said] == []


def test_the_tree_in_the_readme_is_the_tree() -> None:
    [tree] = [text for text in blocks(ROOT / "README.md", "text") if "src/inferno/\n" in text]
    package = ROOT / "src" / "inferno"
    rooms = {p.name for p in package.iterdir() if not p.name.startswith(("_", "py."))}
    named = {
        name.rstrip("/")
        for line in tree.splitlines()
        if line.startswith("  ")
        for name in _names(line)
    }
    assert rooms == named


def _names(line: str) -> list[str]:
    """The files and folders that a line of the tree is about: what comes before two spaces."""
    return re.split(r" {2,}", line.strip())[0].split() if re.match(r"  \w", line) else []


# --- names ----------------------------------------------------------------------------------------

SOURCE = ROOT / "src" / "inferno"
CLASSES = {
    node.name: ".".join(["inferno", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(
        ".__init__"
    )
    for path in SOURCE.rglob("*.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef)
}


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.parent.name in ("explanation", "decisions", "docs")],
    ids=lambda page: page.name,
)
def test_names_of_the_code_exist(page: Path) -> None:
    """`Scheduler.plan`, `cache.extend_keys`: a dotted name that begins with a class or a room of
    ours."""
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    rooms = {path.stem for path in SOURCE.iterdir()}
    missing = []
    for name in re.findall(r"`((?:inferno\.)?\w+(?:\.\w+)+)(?:\([^`]*\))?`", prose):
        first, *rest = name.removeprefix("inferno.").split(".")
        if first in CLASSES:
            first = f"{CLASSES[first]}:{first}"
        elif first not in rooms or rest == ["py"]:
            continue
        if not _exists(first.replace("inferno.", "", 1), rest):
            missing.append(name)
    assert missing == []


def _exists(start: str, rest: list[str]) -> bool:
    module, _, name = start.partition(":")
    rest = [name, *rest] if name else rest
    while rest and (ROOT / "src" / "inferno" / module.replace(".", "/") / f"{rest[0]}.py").exists():
        module, rest = f"{module}.{rest[0]}", rest[1:]
    found = importlib.import_module(f"inferno.{module}")
    for part in rest:
        if part in getattr(found, "__annotations__", {}):  # a field without a default
            return True
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


# --- the tutorial ---------------------------------------------------------------------------------


_STEP = re.compile(
    r"^\*\*`(?P<file>.+?)`\*\*\n\n```\w+\n(?P<text>.*?)^```$|^```sh\n(?P<sh>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
"""A file with its text, or commands."""


@pytest.mark.slow
def test_the_tutorial_works_from_mkdir_to_run(tmp_path: Path) -> None:
    """Its files are written and its commands run, in its order; pip installs into a folder of its
    own."""
    site, cwd, said = tmp_path / "site", tmp_path, ""
    for found in _STEP.finditer(TUTORIAL.read_text(encoding="utf-8")):
        if found["file"]:
            (cwd / found["file"]).write_text(found["text"], encoding="utf-8")
            continue
        for line in found["sh"].splitlines():
            command = shlex.split(line)
            if command[0] == "cd":
                cwd /= command[1]
            elif command[:2] == ["pip", "install"]:
                pip = [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "--no-deps",
                    "--no-build-isolation",
                    "--no-index",
                ]
                run([*pip, "--target", str(site), "."], cwd)
            elif command[0] in ("inferno", "pytest", "python"):
                module = [] if command[0] == "python" else ["-m", command[0]]
                said += run([sys.executable, *module, *command[1:]], cwd, site)
            else:
                run(command, cwd)
    shown = [
        line for text in blocks(TUTORIAL, "text") for line in text.splitlines() if "..." not in line
    ]
    assert len(shown) > 5 and [line for line in shown if line not in said.splitlines()] == []
    assert re.search(r"^\d+ passed", said, re.MULTILINE)
