"""The command is one like any plugin's."""

from __future__ import annotations

from inferno.testing import CommandTests


class TestGpuReport(CommandTests):
    command = "gpu-report"
