"""Which model a command uses if none is named."""

from __future__ import annotations

from collections.abc import Collection
from importlib import metadata

import pytest

from inferno.cli.options import FIRST_PACKAGE, chosen


def installed(monkeypatch: pytest.MonkeyPatch, package: bool, source: bool) -> None:
    def version(name: str) -> str:
        if not (package and name == FIRST_PACKAGE):
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    def entry_points(*, group: str, name: str) -> Collection[str]:
        assert (group, name) == ("inferno", "package")
        return [name] if source else []

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "entry_points", entry_points)


def test_the_model_that_is_named_is_used_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen("./bear.gguf") == "./bear.gguf"
    assert capsys.readouterr() == ("", "")


def test_a_trained_model_is_used_where_its_package_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, package=True, source=True)
    assert chosen(None) == f"package:{FIRST_PACKAGE}"
    assert capsys.readouterr().err == f"No model named: using `package:{FIRST_PACKAGE}`.\n"


@pytest.mark.parametrize("package, source", [(False, False), (False, True), (True, False)])
def test_elsewhere_the_toy_is_used_and_the_note_says_what_to_install(
    package: bool, source: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, package, source)
    assert chosen(None) == "demo"
    output = capsys.readouterr().err
    assert (f"pip install --no-deps {FIRST_PACKAGE}" in output) == (not package)
