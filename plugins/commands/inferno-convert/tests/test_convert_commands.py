"""The commands are two like any plugin's."""

from __future__ import annotations

from inferno.testing import CommandTests


class TestConvert(CommandTests):
    command = "convert"


class TestPackage(CommandTests):
    command = "package"
