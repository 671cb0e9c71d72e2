"""Tests of what starts the processes of an engine's ranks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from inferno.catalog import Catalog
from inferno.contracts import Device, Executor, MachineStart, RankProcess, RankStart
from inferno.testing.installed import Installed


class ExecutorTests(Installed):
    """Set `executor` to its registered name."""

    executor: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> Executor:
        return catalog.named(Executor, cls.executor).item

    def start(self, item: Executor, folder: Path, code: str, *arguments: str) -> RankProcess:
        """Start a rank that runs this Python code instead."""
        command = sys.executable, "-c", code, *arguments
        assert item.start is not None, "it starts ranks on this machine"
        return item.start(RankStart(rank=1, ranks=2, folder=str(folder), command=command))

    def test_it_says_how_a_rank_has_ended(self, item: Executor, tmp_path: Path) -> None:
        ending = self.start(item, tmp_path, "raise SystemExit(3)").wait()
        assert "3" in ending and not ending.endswith("."), "a sentence without subject and stop"

    def test_a_rank_is_given_its_arguments(self, item: Executor, tmp_path: Path) -> None:
        code = "import pathlib, sys; pathlib.Path(sys.argv[1], sys.argv[2]).touch()"
        self.start(item, tmp_path, code, str(tmp_path), "here").wait()
        assert (tmp_path / "here").exists()

    def test_a_rank_that_runs_can_be_ended(self, item: Executor, tmp_path: Path) -> None:
        rank, endings = self.start(item, tmp_path, "import time; time.sleep(600)"), list[str]()
        waiting = threading.Thread(target=lambda: endings.append(rank.wait()))
        waiting.start()
        assert not rank.is_stopped()
        rank.kill()
        waiting.join(60)
        assert len(endings) == 1 and endings[0]
        rank.kill()  # nothing is left to end

    def test_it_accepts_two_ranks_or_says_why_not(self, item: Executor) -> None:
        reason = item.refuses(2, Device(kind="cpu", index=0))
        assert reason is None or len(reason.split()) > 2 and not reason.endswith(".")


class MachineExecutorTests(Installed):
    """Of one that starts other machines. Set `executor` to its registered name. What they run is
    code of this Python's."""

    executor: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> Executor:
        return catalog.named(Executor, cls.executor).item

    def asked(
        self, code: str, *arguments: str, machines: int = 1, threads: int = 1, gpus: int = 0
    ) -> MachineStart:
        """Return what starts machines that run this Python code instead."""
        return MachineStart(
            machines=machines,
            ranks=1,
            threads=threads,
            gpus=gpus,
            address="127.0.0.1:1",
            command=(sys.executable, "-c", code, *arguments),
            token="the secret of the machines",
        )

    def start(self, item: Executor, what: MachineStart) -> Sequence[RankProcess]:
        assert item.machines is not None, "it starts other machines"
        return item.machines(what)

    def test_it_says_how_each_machines_process_has_ended(self, item: Executor) -> None:
        started = self.start(item, self.asked("raise SystemExit(3)", machines=2))
        assert len(started) == 2
        for process in started:
            ending = process.wait()
            assert "3" in ending and not ending.endswith("."), "without subject and stop"
            process.kill()  # nothing is left to end

    def test_the_token_is_in_the_environment_and_in_no_argument(
        self, item: Executor, tmp_path: Path
    ) -> None:
        code = (
            "import pathlib, sys; from os import environ; token = environ['INFERNO_RANK_TOKEN'];"
            "command = pathlib.Path('/proc/self/cmdline');"
            "shown = command.exists() and token.encode() in command.read_bytes();"
            "pathlib.Path(sys.argv[1]).write_text('shown' if shown else token)"
        )
        [process] = self.start(item, what := self.asked(code, str(tmp_path / "seen")))
        process.wait()
        assert (tmp_path / "seen").read_text() == what.token
        process.kill()

    def test_a_process_that_runs_can_be_ended(self, item: Executor) -> None:
        [process] = self.start(item, self.asked("import time; time.sleep(600)"))
        endings = list[str]()
        waiting = threading.Thread(target=lambda: endings.append(process.wait()))
        waiting.start()
        assert not process.is_stopped()
        process.kill()
        waiting.join(60)
        assert len(endings) == 1 and endings[0]

    def test_it_accepts_two_ranks_or_says_why_not(self, item: Executor) -> None:
        reason = item.refuses(2, Device(kind="cpu", index=0))
        assert reason is None or len(reason.split()) > 2 and not reason.endswith(".")
