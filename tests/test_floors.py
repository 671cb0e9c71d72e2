"""Rooms are on floors: a module imports only from lower ones. A change of the table says why."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.sources import imports_in

import inferno
from inferno_index import inferno_hints

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "inferno"
FLOORS = [  # top to bottom; rooms of one floor do not import each other
    {"__main__"},
    {"cli"},
    {"testing"},
    {"server"},
    {"llm"},
    {"process"},
    {"core"},
    {"sampling", "images"},
    {"constraints"},
    {"text"},
    {"stores"},
    {"weights"},
    {"plan", "builtin"},
    {"attention"},
    {"nn", "catalog"},
    {"configs", "device", "ops"},
    {"contracts", "hookspecs", "host"},
    {"request"},
    {"errors", "__init__"},
]
HEIGHT = {room: -depth for depth, floor in enumerate(FLOORS) for room in floor}
FOR_PLUGINS = {
    "attention",
    "configs",
    "contracts",
    "errors",
    "hookspecs",
    "nn",
    "ops",
    "testing",
}
COMMANDS = ROOT / "plugins" / "commands"
"""Released together with the kernel, whose rooms they may import below the command line."""
ABOVE_COMMANDS = {"__main__", "cli", "server"}
FOR_COMMANDS = {"inferno.cli.options", "inferno.cli.ragged"}
FOR_ENDPOINTS = "inferno.server.api"
"""What plugins with endpoints may import of the server."""
MODULES = sorted(SRC.rglob("*.py"))
PLUGIN_MODULES = sorted(path for path in ROOT.glob("plugins/*/*/src/**/*.py"))
PLUGIN_PACKAGES = sorted(path.parent for path in ROOT.glob("plugins/*/*/src/*/__init__.py"))
PLUGIN_TESTS = sorted(
    path for folder in ("tests", "tools") for path in ROOT.glob(f"plugins/*/*/{folder}/**/*.py")
)
TESTS = ROOT / "tests"
TESTS_OF_THE_WHOLE = {"acceptance", "real", "thirdparty"}
"""Folders of tests of more than one room: clients, a trained model, strangers' plugins."""
PUBLIC = {*inferno.__all__, *FOR_PLUGINS}
MAX_LINES = 400
MAX_CORE_LINES = 4112
"""Of them 200 let an engine sleep and change its weights, and 100 bound its steps in time: no room
above can, for they take the runner and the store from under the scheduler, and cut its slices. With
20 an engine's home may be one of several processes (`process/ranks`): it says what runs steps, and
what an engine that rests or closes must know. 10 admit an encoder's prompts whole only. 8 see
images: a block's key and a fork tell them apart, and a step begins no more of them than it may. 3
are of links: an output may begin with a token that another instance has drawn."""
WITH_ROOM = {"core/schedule/scheduler.py": 280, "core/runner/model_runner.py": 240}
"""What every new need of a request would like to be written into, and the lines that each has."""


@cache
def imports(path: Path) -> list[tuple[str, str]]:
    """(module, name) of every import that runs, in functions too: `if TYPE_CHECKING` does not
    count."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    for node, for_types in imports_in(path):
        if for_types:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield from ((node.module, alias.name) for alias in node.names)
        else:
            yield from ((alias.name, "") for alias in node.names)


def has_endpoints(path: Path) -> bool:
    """Whether a plugin's module is of a distribution that adds endpoints to the server."""
    project = ROOT.joinpath(*path.relative_to(ROOT).parts[:3], "pyproject.toml")
    return "inferno.endpoints" in project.read_text()


def is_library(path: Path) -> bool:
    """Whether it is of a library over the Python API, which imports what `import inferno` offers,
    and nothing below."""
    return path.is_relative_to(ROOT / "plugins" / "api") and not has_endpoints(path)


def rooms(path: Path) -> set[str]:
    """The rooms of inferno that the module imports."""
    names = set()
    for module, name in imports(path):
        package, *rest = module.split(".")
        if package == "inferno":
            names.add(rest[0] if rest else name if name in HEIGHT else "__init__")
    return names


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def test_no_module_is_loose() -> None:
    loose = {path.stem for path in SRC.glob("*.py")}
    assert loose == {"__init__", "__main__", "errors", "hookspecs", "host"}


def test_a_folder_of_tests_is_named_as_its_room() -> None:
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    assert folders - TESTS_OF_THE_WHOLE <= set(HEIGHT), "tests/ROOM, or loose: of the repository"


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in MODULES} == set(HEIGHT)


def test_imports_go_down() -> None:
    problems = {}
    for path in MODULES:
        room = room_of(path)
        if up := {other for other in rooms(path) - {room} if HEIGHT[other] >= HEIGHT[room]}:
            problems[str(path.relative_to(SRC))] = sorted(up)
    assert not problems, "hand the value in, or change the table with a reason"


def test_a_plugin_knows_the_public_modules_and_no_other_plugin() -> None:
    problems = []
    for path in PLUGIN_MODULES:
        plugin = path.relative_to(ROOT).parts[4]
        command = path.is_relative_to(COMMANDS)
        endpoints, library = has_endpoints(path), is_library(path)
        for module, name in imports(path):
            package, *rest = module.split(".")
            if package == "inferno" and library:
                known = not rest and name in inferno.__all__
            elif package == "inferno" and command:
                known = bool(rest) and rest[0] not in ABOVE_COMMANDS or module in FOR_COMMANDS
                known |= name in PUBLIC or name == "host"
            elif package == "inferno":
                known = bool(rest) and rest[0] in FOR_PLUGINS or name in ("hookimpl", "__version__")
                known |= endpoints and module == FOR_ENDPOINTS
            else:
                known = not package.startswith("inferno_") or package == plugin
            if not known:
                problems.append(f"{path.relative_to(ROOT)}: {module} {name}".rstrip())
    assert problems == []


def test_a_plugins_tests_know_the_public_modules_and_no_other_plugin() -> None:
    """What a stranger's tests may count on: the kit's public names, not its modules."""
    problems = []
    for path in PLUGIN_TESTS:
        if path.is_relative_to(COMMANDS) or has_endpoints(path):
            continue  # they are tests of the kernel's rooms too
        plugin = path.relative_to(ROOT).parts[2].replace("-", "_")
        for module, name in imports(path):
            package, *rest = module.split(".")
            # The demo model is a checkpoint that any plugin's tests may convert.
            ours = package.startswith("inferno_") and package not in (plugin, "inferno_demo")
            kernel = package == "inferno" and (
                rest == []
                and name not in PUBLIC
                or rest[:1] == ["testing"]
                and len(rest) > 1
                or rest
                and rest[0] not in FOR_PLUGINS
            )
            if ours or kernel:
                problems.append(f"{path.relative_to(ROOT)}: {module} {name}".rstrip())
    assert problems == []


def test_the_check_sees_imports_in_functions_and_not_those_for_types(tmp_path: Path) -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from inferno.server.app import create_app
else:
    from inferno.plan import Plan
def f():
    from inferno import hookimpl
    from inferno.weights import loading
    import inferno.core.engine
"""
    (tmp_path / "x.py").write_text(source)
    assert rooms(tmp_path / "x.py") == {"plan", "weights", "__init__", "core"}


def import_graph(folder: Path) -> dict[str, set[str]]:
    """The modules of the package in a folder, and what each imports of it: at the top, in functions
    and for types. A name that a package re-exports is an import of the package."""
    modules: dict[str, list[Path]] = {}
    for path in [*folder.rglob("*.py"), *folder.rglob("*.pyi")]:
        parts = path.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.setdefault(name, []).append(path)
    graph: dict[str, set[str]] = {}
    for name, paths in modules.items():
        imported = set()
        for node, _ in (each for path in paths for each in imports_in(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    module = f"{node.module}.{alias.name}"
                    imported.add(module if module in modules else node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        graph[name] = {other for other in imported if other in modules and other != name}
    return graph


def circle_of(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [*error.args[1]]
    return []


def test_no_circle_of_imports_even_in_functions_or_for_types() -> None:
    for package in (SRC, *PLUGIN_PACKAGES):
        assert circle_of(import_graph(package)) == [], package


def test_the_check_of_circles_sees_packages_functions_and_types(tmp_path: Path) -> None:
    files = {
        "a/__init__.py": "from a.b import f",
        "a/b.py": "if TYPE_CHECKING:\n    import a.c",
        "a/c.py": "def g():\n    from a import f",
    }
    (tmp_path / "a").mkdir()
    for name, source in files.items():
        (tmp_path / name).write_text(source)
        closed = name == "a/c.py"
        assert len(circle_of(import_graph(tmp_path / "a"))) == (4 if closed else 0)


def test_files_stay_small() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in [*MODULES, *PLUGIN_MODULES]}
    large = {str(path.relative_to(ROOT)): n for path, n in lines.items() if n > MAX_LINES}
    assert not large, "split them by meaning; to raise the limit, make the case in the change"


def test_the_core_stays_small() -> None:
    """What every request walks through, whatever the model. The README quotes this number."""
    lines = sum(len(path.read_text().splitlines()) for path in (SRC / "core").rglob("*.py"))
    assert lines <= MAX_CORE_LINES, f"{lines} lines in core: move out what not every request needs"


def test_scheduler_and_runner_keep_room() -> None:
    lines = {path: len((SRC / path).read_text().splitlines()) for path in WITH_ROOM}
    large = {path: count for path, count in lines.items() if count > WITH_ROOM[path]}
    assert not large, "make it a part of the step (`StepPart`), or of planning one"


# --- names ----------------------------------------------------------------------------------------

DISTRIBUTION = re.compile(r"\binferno-[a-z]")


def strings(tree: ast.Module) -> Iterator[str]:
    """Every string that is not a docstring or a field's description."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def test_the_kernel_names_no_other_distribution_and_no_architecture() -> None:
    names = {hint.name for hint in inferno_hints() if hint.kind == "architecture"} - {"*"}
    # llama.cpp is a project, llama3 the published name of a way to scale rotary frequencies.
    model = re.compile(rf"\b({'|'.join(sorted(names))})\b(?!\.cpp)", re.IGNORECASE)
    problems = [
        f"{path.relative_to(SRC)}: {text!r}"
        for path in MODULES
        for text in strings(ast.parse(path.read_text()))
        if DISTRIBUTION.search(text) or model.search(text)
    ]
    assert problems == []
