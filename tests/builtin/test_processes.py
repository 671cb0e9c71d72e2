"""Ranks as child processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from inferno.builtin.processes import ChildProcess
from inferno.contracts import Executor, RankStart
from inferno.testing import ExecutorTests


class TestProcesses(ExecutorTests):
    executor = "processes"

    @pytest.mark.skipif(not hasattr(os, "waitid"), reason="the system does not say")
    def test_a_rank_that_a_signal_has_stopped_is_told_from_others(
        self, item: Executor, tmp_path: Path
    ) -> None:
        rank = self.start(item, tmp_path, "import time; time.sleep(600)")
        assert isinstance(rank, ChildProcess)
        os.kill(rank.child.pid, signal.SIGSTOP)
        while not rank.is_stopped():
            time.sleep(0.01)
        rank.kill()
        assert rank.wait() == "was killed by SIGKILL" and not rank.is_stopped()

    def test_a_program_that_is_not_there_is_an_error_of_the_system(self, tmp_path: Path) -> None:
        what = RankStart(
            rank=1, ranks=2, folder=str(tmp_path), command=("/nowhere", sys.executable)
        )
        with pytest.raises(OSError, match="nowhere"):
            ChildProcess.start(what)
