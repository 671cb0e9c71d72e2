"""Tests run many small steps side by side: a second thread per step only waits for a core. Those
that need a distribution that is not installed are skipped, by the names in `needs.toml`."""

from __future__ import annotations

import gc
import os
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.forked import Forks

gc.disable()  # until the tests are collected: little of what that makes is garbage

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported, here and in every process a test starts

# A busy machine draws examples slowly, and that is no fault of a test.
settings.register_profile("inferno", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("inferno")

HERE = Path(__file__).parent
_NEEDS = tomllib.loads(HERE.joinpath("needs.toml").read_text(encoding="utf-8"))
_INSTALLED = {each.name for each in metadata.distributions()}


def _missing(needs: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the names of tests that cannot run here, and why."""
    absent = {name: [d for d in needed if d not in _INSTALLED] for name, needed in needs.items()}
    return {name: f"needs {' and '.join(lacking)}" for name, lacking in absent.items() if lacking}


_NOT_IMPORTED, _SKIPPED = _missing(_NEEDS["imports"]), _missing(_NEEDS["tests"])
collect_ignore = list(_NOT_IMPORTED)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs commands that need no torch, many in one process's forks."""
    from tests.forked import Forks

    forks = Forks()
    yield forks
    forks.close()


def pytest_report_header() -> list[str]:
    return [f"not collected: tests/{name} {why}" for name, why in _NOT_IMPORTED.items()]


@pytest.hookimpl(tryfirst=True)  # before the cases are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _take_in_turn(config, items)
    _mark_alike(items)
    if third := os.environ.get("INFERNO_TEST_THIRD"):
        _take_a_third(config, items, int(third))
    for item in items if _SKIPPED else ():
        if not item.path.is_relative_to(HERE):
            continue
        name = str(item.path.relative_to(HERE)) + item.nodeid[item.nodeid.index("::") :]
        for prefix, why in _SKIPPED.items():
            if name.startswith(prefix):
                item.add_marker(pytest.mark.skip(reason=why))


def _mark_alike(items: Sequence[pytest.Item]) -> None:
    """Mark what `inferno.testing.alike` leaves out of `make test`: all cases of a file but one, and
    of the files that have a test but the first, two of three. Each file has a third of its tests,
    as the count begins elsewhere for each test."""
    files, tests = defaultdict[str, dict[Path, int]](dict), dict[str, int]()
    for item in items:
        if isinstance(item, pytest.Function) and getattr(item.function, "alike", False):
            test = item.function.__qualname__
            turn = tests.setdefault(test, len(tests))
            seen = item.path in files[test]
            which = files[test].setdefault(item.path, len(files[test]))
            if seen or _rests(which, turn):
                item.add_marker(pytest.mark.slow)


def _take_a_third(config: pytest.Config, items: list[pytest.Item], third: int) -> None:
    """Of each test that has three slow cases or more, in all files together, leave out two of
    three: other ones for each `third` from 0 to 2."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow") is not None:
            tests[item.function.__qualname__].append(item)
    left = set[pytest.Item]()
    for turn, cases in enumerate(tests.values(), third):
        if len(cases) >= 3:
            left.update(case for i, case in enumerate(cases, turn) if i % 3)
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=[*left])


def _take_in_turn(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `inferno.testing.in_turn` says: of each class of a file but the first, two of
    three such tests."""
    files = defaultdict[Path, tuple[dict[object, int], dict[str, int]]](lambda: ({}, {}))
    taken, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        skipped = False
        if isinstance(item, pytest.Function) and getattr(item.function, "in_turn", False):
            classes, tests = files[item.path]
            which = classes.setdefault(item.cls, len(classes))
            turn = tests.setdefault(item.name, len(tests))
            skipped = _rests(which, turn)
        (left if skipped else taken).append(item)
    items[:] = taken
    config.hook.pytest_deselected(items=left)


def _rests(which: int, turn: int) -> bool:
    """Whether one of the files or classes of a test is left out: two of three but the first, other
    ones for each test."""
    return bool(which and (which + turn) % 3)


class Memory:
    """Hides what is in memory from the garbage collector: once the tests are collected, and
    wherever tests have imported more. An engine collects garbage when it closes, and thousands
    close: with all modules and twenty thousand tests in sight, 0.2 to 0.3 s each."""

    modules = 0

    def pytest_collection_finish(self) -> None:
        gc.freeze()
        gc.enable()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        moved_on = nextitem is not None and nextitem.path != item.path
        if moved_on or len(sys.modules) > self.modules + 10:
            self._freeze()

    def _freeze(self) -> None:
        gc.collect()
        gc.freeze()
        self.modules = len(sys.modules)


def pytest_configure(config: pytest.Config) -> None:
    # As a plugin: hooks of this file are called for the tests below its folder alone.
    config.pluginmanager.register(Memory())
