"""What confines the processes that run a plan."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from inferno.errors import OptionError


@frozen(kw_only=True)
class SandboxUse:
    """The sandbox, and the files that it leaves open beside Python's and the system's."""

    name: str
    distribution: str
    holds: tuple[str, ...]
    """What it enforces on this machine."""
    lacks: tuple[str, ...] = ()
    """What it cannot."""
    reads: tuple[str, ...] = ()
    """Files and folders that the processes may read."""
    writes: tuple[str, ...] = ()
    """Folders that the engine may write to, beside a temporary one of its own."""

    def check(self, path: str | Path) -> None:
        """Raise OptionError for what the engine may not read."""
        wanted = Path(path).resolve()
        if not any(wanted.is_relative_to(folder) for folder in _resolved(self.reads, sys.path)):
            raise OptionError(
                f"the sandbox does not let the engine read {path}",
                "Put it into a folder that the server was started with: --sandbox-read DIR.",
            )


def _resolved(*paths: Iterable[str]) -> Iterable[Path]:
    return (Path(path).resolve() for some in paths for path in some if path)
