"""A rank's process: `python -m inferno.process.ranks FOLDER RANK PARENT`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG"""


def main() -> None:
    folder, rank, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    die_with(parent)
    for stop in (signal.SIGINT, signal.SIGTERM):
        # Both may go to the whole process group: rank 0 decides.
        signal.signal(stop, signal.SIG_IGN)
    # Only now: torch takes seconds, in which the parent may end.
    from inferno.process.ranks.following import run

    try:
        run(folder, rank, alive=lambda: os.getppid() == parent)
    except Exception:
        sys.exit(1)  # rank 0 was told why


def die_with(parent: int) -> None:
    """Let the system end this process with its parent; where it cannot, the loop notices."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main()
