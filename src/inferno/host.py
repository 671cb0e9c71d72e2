"""The machine: its memory, its cores, its threads. Imports no torch."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from inferno.errors import OptionError

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
CGROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Folder of a cgroup, its limit, its use, and the use that is only cached files: versions 2 and
1."""


def format_bytes(nbytes: float) -> str:
    """Format a number of bytes for people: `8.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def parse_memory(text: str, total: int, option: str = "--memory") -> int:
    """Parse `8GiB`, `500MB` or `60%` (of `total`) into bytes. Raises OptionError, which names the
    option."""
    if match := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text):
        share = float(match[1]) / 100
        if not 0 < share <= 1:
            raise OptionError(f"invalid {option} {text}", "Give more than 0% and at most 100%.")
        return int(total * share)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?\s*", text.upper())
    if match is None:
        raise OptionError(f"invalid {option} {text!r}", "Write it as 8GiB, 500MB or 60%.")
    nbytes = int(float(match[1]) * UNITS[match[2]]) if match[2] in UNITS else 0
    if nbytes <= 0:
        raise OptionError(f"invalid {option} {text!r}", "Write it as 8GiB, 500MB or 60%.")
    return nbytes


def memory(root: Path = Path("/")) -> tuple[int, int]:
    """Return the bytes of memory that this process may use, and of them those that are free or hold
    cached files, under its cgroup's limit. `root` is the folder with `proc` and `sys`."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _field(root / "proc/meminfo", "MemAvailable:") * 1024 or total
    for folder, limit, used, cached in CGROUPS:
        if (most := _number(root / folder / limit)) is None:  # no such cgroup, or "max"
            continue
        held = _number(root / folder / used) or 0
        total = min(total, most)
        free = min(free, most - held + _field(root / folder / "memory.stat", cached))
    return total, max(0, min(free, total))


def cpu_name(root: Path = Path("/")) -> str:
    """Return the processor's model, or its architecture where the system does not say."""
    try:
        with (root / "proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.machine()


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _field(file: Path, name: str) -> int:
    """Return the number after `name` in a file of such lines, or 0."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_torch_library() -> None:
    """Begin to load torch's largest library in a thread, unless torch is imported already.

    That takes a quarter of torch's import. The library is C++ and needs no interpreter, so it loads
    beside whatever is done before torch is imported, which then finds it loaded.
    """
    if "torch" in sys.modules or not sys.platform.startswith("linux"):
        return
    import ctypes
    from importlib.util import find_spec
    from threading import Thread

    found = find_spec("torch")
    for folder in (found and found.submodule_search_locations) or ():
        library = Path(folder) / "lib" / "libtorch_cpu.so"
        if library.exists():
            path = os.fsencode(library), os.RTLD_NOW | os.RTLD_LOCAL
            # A foreign call: unlike `ctypes.CDLL`, it lets other threads run.
            load = ctypes.CDLL(None).dlopen
            Thread(target=load, args=path, name="inferno torch library", daemon=True).start()


def sleep_at_barriers() -> None:
    """Make OpenMP threads spin for 0.4 ms at a barrier and then sleep, unless the user has set
    another value.

    By default they spin for milliseconds. On a busy machine a spinning thread takes the core that
    its own teammate needs, and a step becomes ten times slower. libgomp reads the variable once,
    when torch is imported.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
