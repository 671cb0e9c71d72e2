"""What `make test` runs of tests whose cases are alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
from inferno.testing.alike import alike

class Kit:
    @alike
    @pytest.mark.parametrize("size", [1, 2])
    def test_alike(self, size):
        pass

    def test_other(self):
        pass

class TestFirst(Kit):
    pass

class TestSecond(Kit):
    pass
"""


def test_of_a_grid_the_first_case_of_each_file_is_not_slow(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_two.py"):
        tmp_path.joinpath(name).write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "-q"]
    listed = subprocess.run(
        [*command, "-m", "not slow", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    ).stdout
    for name in ("test_one.py", "test_two.py"):
        cases = [line.partition("::")[2] for line in listed.splitlines() if f"{name}::" in line]
        assert cases == [
            "TestFirst::test_alike[1]",
            "TestFirst::test_other",
            "TestSecond::test_other",
        ]
