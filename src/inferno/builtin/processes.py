"""Ranks as child processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Self

from attrs import frozen

from inferno.contracts import Device, RankStart

MOST = 64
"""The most ranks on one machine: more is a slip."""


def refuses(ranks: int, device: Device) -> str | None:
    return f"it starts at most {MOST} ranks" if ranks > MOST else None


@frozen(eq=False)
class ChildProcess:
    """A rank in a process of its own, a child of this one."""

    child: subprocess.Popen[bytes]

    @classmethod
    def start(cls, what: RankStart) -> Self:
        """Start it. Its output goes to this process's standard error."""
        return cls(subprocess.Popen([*what.command], stdin=subprocess.DEVNULL, stdout=2))

    def wait(self) -> str:
        code = self.child.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"

    def is_stopped(self) -> bool:
        if not hasattr(os, "waitid"):
            return False
        how = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.child.pid, how) is not None
        except ChildProcessError:  # it has ended
            return False

    def kill(self) -> None:
        self.child.kill()
