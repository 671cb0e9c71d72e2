from __future__ import annotations

from inferno.testing import CommandTests


class TestScribe(CommandTests):
    command = "scribe"
