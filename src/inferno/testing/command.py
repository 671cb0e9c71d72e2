"""Tests of every command: the command line lists it, and its help costs nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

import pytest

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import Command
from inferno.hookspecs import COMMANDS

_MAIN = "import sys; from inferno.cli import main; sys.argv = ['inferno', *{args!r}]\n"
_HEAVY = "try: main()\nfinally: print('heavy:', {heavy!r} & set(sys.modules), file=sys.stderr)"


class CommandTests:
    """Set `command` to its name."""

    command: ClassVar[str]
    heavy: ClassVar[frozenset[str]] = frozenset({"torch", "transformers", "litestar"})
    """Modules that its help must not import."""

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return load_catalog(groups=[COMMANDS])

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> Command:
        return catalog.named(Command, cls.command).item

    def test_the_list_of_commands_says_what_it_does(self, item: Command) -> None:
        assert item.help.endswith(".") and "\n" not in item.help
        listed = self._help()
        assert f" {self.command} " in listed.stdout
        assert item.help.split()[0] in listed.stdout

    def test_it_is_imported_only_when_asked_for(self, item: Command) -> None:
        module = str(item.command).partition(":")[0]
        code = _MAIN.format(args=["--help"]) + _HEAVY.format(heavy={module} | self.heavy)
        assert "heavy: set()" in self._run(code).stderr

    def test_its_help_imports_nothing_heavy(self, item: Command) -> None:
        done = self._help(self.command)
        assert "Usage" in done.stdout, done.stderr
        assert "heavy: set()" in done.stderr

    def test_an_unknown_option_is_refused(self, item: Command) -> None:
        code = _MAIN.format(args=[self.command, "--no-such-option"]) + "main()"
        done = self._run(code)
        assert done.returncode == 2 and "no-such-option" in done.stderr, done.stderr

    def _help(self, *args: str) -> subprocess.CompletedProcess[str]:
        code = _MAIN.format(args=[*args, "--help"]) + _HEAVY.format(heavy=set(self.heavy))
        done = self._run(code)
        assert done.returncode == 0, done.stderr
        return done

    def _run(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
