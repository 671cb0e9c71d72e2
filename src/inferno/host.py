"""The machine: its memory, its cores, its threads. Imports no torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from inferno.errors import OptionError, OutOfMemoryError

UNITS = {
    "": 1,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "KI": 1024,
    "MI": 1024**2,
    "GI": 1024**3,
    "TI": 1024**4,
}
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def format_bytes(nbytes: float) -> str:
    """Format a number of bytes for people: `8.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def parse_memory(text: str, total: int) -> int:
    """Parse `8GiB`, `500MB` or `60%` (of `total`) into bytes. Raises OptionError,
    OutOfMemoryError."""
    if match := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text):
        share = float(match[1]) / 100
        if not 0 < share <= 1:
            raise OptionError(f"invalid --memory {text}", "Give more than 0% and at most 100%.")
        return int(total * share)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?\s*", text.upper())
    if match is None:
        raise OptionError(f"invalid --memory {text!r}", "Write it as 8GiB, 500MB or 60%.")
    nbytes = int(float(match[1]) * UNITS[match[2]]) if match[2] in UNITS else 0
    if nbytes <= 0:
        raise OptionError(f"invalid --memory {text!r}", "Write it as 8GiB, 500MB or 60%.")
    if nbytes > total:
        raise OutOfMemoryError(
            f"--memory {text} exceeds the device's {format_bytes(total)}", "Lower it."
        )
    return nbytes


def device_total(device: str) -> int:
    """Return the memory of the device in bytes: on the CPU, what this process may use under its
    cgroup limits."""
    if device != "cpu":
        return _gpu_total()
    total = _host_total()
    for file in CGROUP_LIMITS:
        try:
            total = min(total, int(Path(file).read_text()))
        except (OSError, ValueError):  # no such cgroup, or "max"
            continue
    return total


def has_gpu() -> bool:
    from shutil import which

    return which("nvidia-smi") is not None and bool(_nvidia_smi())


def _gpu_total() -> int:
    rows = _nvidia_smi()
    if not rows:
        raise OptionError("no CUDA device was found", "Start with --device cpu.")
    return int(rows[0]) * UNITS["MI"]


def _nvidia_smi() -> list[str]:
    import subprocess  # on use: `inferno serve --help` imports this module, but looks for no GPU

    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in run.stdout.splitlines() if line.strip().isdigit()]


def _host_total() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sleep_at_barriers() -> None:
    """Make OpenMP threads spin for 0.4 ms at a barrier and then sleep, unless the user has set
    another value.

    By default they spin for milliseconds. On a busy machine a spinning thread takes the core that
    its own teammate needs, and a step becomes ten times slower. libgomp reads the variable once,
    when torch is imported.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
