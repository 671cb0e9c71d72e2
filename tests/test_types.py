"""What a type checker tells the author of a plugin: mypy's errors are those that the files under
`typing_tests` expect, line by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferno import hookspecs

ROOT = Path(__file__).parents[1]
PLUGINS = ROOT / "tests" / "typing_tests"


@pytest.mark.slow
def test_mypy_refuses_what_is_wrong_with_a_plugin_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = pytest.importorskip("mypy.api", reason="mypy comes with the extra `lint`")
    monkeypatch.chdir(ROOT)
    files = sorted(PLUGINS.glob("*.py"))
    config = ["--config-file", str(PLUGINS / "mypy.ini"), "--cache-dir", str(tmp_path)]
    out, problems, _ = api.run([*config, "--show-error-codes", *map(str, files)])
    assert not problems
    errors = re.findall(r"^.*?(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", out, re.MULTILINE)
    wanted = [
        (path.stem, str(number), code)
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for codes in re.findall(r"# error: ([\w, -]+)$", line)
        for code in codes.split(", ")
    ]
    assert sorted(errors) == sorted(wanted), out


@pytest.mark.parametrize("name", hookspecs.HOOKS)
def test_a_hooks_protocol_is_called_after_it(name: str) -> None:
    noun = name.removeprefix("inferno_").title().replace("_", "")
    assert name in vars(getattr(hookspecs, f"Provides{noun}"))
