"""What is run of tests whose cases are alike, or join what other tests run by itself."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
from inferno.testing.alike import alike

class Kit:
    @alike
    @pytest.mark.parametrize("size", [1, 2])
    def test_alike(self, size):
        pass

    @alike
    def test_also(self):
        pass

    def test_other(self):
        pass
"""
CLASSES = """
from kit import Kit

class TestFirst(Kit):
    pass

class TestSecond(Kit):
    pass
"""


@pytest.fixture(autouse=True)
def all_thirds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CI sets it for its own run."""
    monkeypatch.delenv("INFERNO_TEST_THIRD", raising=False)


@pytest.mark.slow
def test_of_a_grid_the_first_case_of_every_third_file_is_not_slow(tmp_path: Path) -> None:
    command = _command(tmp_path)
    assert sum(map(len, _listed(command).values())) == 4 * 2 * (2 + 1 + 1)
    listed = _listed([*command, "-m", "not slow"])
    others = ["TestFirst::test_other", "TestSecond::test_other"]
    first, also = "TestFirst::test_alike[1]", "TestFirst::test_also"
    assert [sorted(listed[f"test_{i}.py"]) for i in range(4)] == [
        [first, also, *others],
        others,
        [also, *others],
        [first, *others],
    ]


@pytest.mark.slow
def test_three_runs_of_a_third_take_every_case_and_each_takes_the_quick_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = _command(tmp_path)
    whole, quick = _cases(command), _cases([*command, "-m", "not slow"])
    thirds = list[set[str]]()
    for third in range(3):
        monkeypatch.setenv("INFERNO_TEST_THIRD", str(third))
        thirds.append(_cases(command))
        assert quick < thirds[-1] < whole
        assert _cases([*command, "-m", "not slow"]) == quick
    assert set.union(*thirds) == whole
    for case in whole - quick:
        assert sum(case in third for third in thirds) == 1, case


JOINED = """
from inferno.testing.alike import in_turn

class Kit:
    @in_turn
    def test_a(self):
        pass

    @in_turn
    def test_b(self):
        pass

    @in_turn
    def test_c(self):
        pass

    def test_other(self):
        pass

class TestFirst(Kit):
    pass

class TestSecond(Kit):
    pass

class TestThird(Kit):
    pass
"""


@pytest.mark.slow
def test_of_joined_tests_the_first_class_has_all_and_each_other_a_third(tmp_path: Path) -> None:
    tmp_path.joinpath("test_one.py").write_text(JOINED)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(tmp_path)]
    whole = _listed(command)["test_one.py"]
    assert len(whole) == 12
    assert _listed([*command, "-p", "tests.conftest"])["test_one.py"] == [
        *whole[:4],
        "TestSecond::test_c",
        "TestSecond::test_other",
        "TestThird::test_b",
        "TestThird::test_other",
    ]


def _command(folder: Path) -> list[str]:
    """Write four files with the same tests. Returns what lists them."""
    folder.joinpath("kit.py").write_text(TESTS)
    for i in range(4):
        folder.joinpath(f"test_{i}.py").write_text(CLASSES)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "-q"]
    return [*command, str(folder)]


def _cases(command: list[str]) -> set[str]:
    return {f"{file}::{case}" for file, cases in _listed(command).items() for case in cases}


def _listed(command: list[str]) -> Mapping[str, list[str]]:
    """Run pytest's collection, and return the cases of each file by its name."""
    cases = defaultdict[str, list[str]](list)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        path, colons, case = line.partition("::")
        if colons:
            cases[Path(path).name].append(case)
    return cases
