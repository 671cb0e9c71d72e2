"""The machine: its memory, its cores, its threads. Imports no torch, and little else: it is the
first import of a command and of the engine process."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Thread

    from inferno.errors import SystemLimitError

_NO_THREAD = "can't start new thread", "(os error 11)"
_NO_MEMORY = "can't allocate memory", "(os error 12)"
"""In the messages of Python's threads, torch's tensors and libraries in Rust."""
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


def parse_memory(text: str, total: int) -> int:
    """Parse `8GiB`, `500MB` or `60%` (of `total`) into bytes. Raises OptionError."""
    import re

    from inferno.errors import OptionError

    if match := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text):
        share = float(match[1]) / 100
        if not 0 < share <= 1:
            raise OptionError(f"invalid --memory {text}", "Give more than 0% and at most 100%.")
        return int(total * share)
    return parse_size(text, "--memory", ", 500MB or 60%")


def parse_size(text: str, option: str, also: str = " or 500MB") -> int:
    """Parse `8GiB` or `500MB` into bytes. Raises OptionError with the option's name."""
    import re

    from inferno.errors import OptionError

    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?\s*", text.upper())
    nbytes = 0 if match is None else int(float(match[1]) * UNITS.get(match[2], 0))
    if nbytes <= 0:
        raise OptionError(f"invalid {option} {text!r}", f"Write it as 8GiB{also}.")
    return nbytes


def memory(root: str | os.PathLike[str] = "/") -> tuple[int, int]:
    """Return the bytes of memory that this process may use, and of them those that are free or hold
    cached files, under its cgroup's limit. `root` is the folder with `proc` and `sys`."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _field(os.path.join(root, "proc/meminfo"), "MemAvailable:") * 1024 or total
    for folder, limit, used, cached in CGROUPS:
        if (most := _number(os.path.join(root, folder, limit))) is None:  # no such cgroup, or "max"
            continue
        usage = _number(os.path.join(root, folder, used)) or 0
        total = min(total, most)
        free = min(free, most - usage + _field(os.path.join(root, folder, "memory.stat"), cached))
    return total, max(0, min(free, total))


def cpu_name(root: str | os.PathLike[str] = "/") -> str:
    """Return the processor's model, or its architecture where the system does not say."""
    if name := _cpuinfo("model name", root):
        return name
    import platform

    return platform.machine()


def cpu_flags(root: str | os.PathLike[str] = "/") -> frozenset[str]:
    """Return the processor's features as Linux names them; empty where it does not say."""
    return frozenset((_cpuinfo("flags", root) or _cpuinfo("Features", root)).split())


def _cpuinfo(field: str, root: str | os.PathLike[str]) -> str:
    """Return a field of the first processor, or an empty string."""
    try:
        with open(os.path.join(root, "proc/cpuinfo"), encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""


def _number(file: str) -> int | None:
    try:
        with open(file) as text:
            return int(text.read())
    except (OSError, ValueError):
        return None


def _field(file: str, name: str) -> int:
    """Return the number after `name` in a file of such lines, or 0."""
    try:
        with open(file) as lines:
            return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
    except OSError:
        return 0


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def numa_nodes(root: str | os.PathLike[str] = "/") -> dict[int, tuple[int, ...]]:
    """Return the cores of each NUMA node on which this process may run, by the node's number; none
    where the system does not say. `root` is the folder with `sys`."""
    folder = os.path.join(root, "sys/devices/system/node")
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    nodes = dict[int, tuple[int, ...]]()
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.startswith("node") and name[4:].isdecimal():
            with open(os.path.join(folder, name, "cpulist"), encoding="utf-8") as text:
                cores = tuple(core for core in _cores(text.read()) if core in usable)
            if cores:
                nodes[int(name[4:])] = cores
    return nodes


def _cores(text: str) -> Iterator[int]:
    """Return the numbers of a list such as `0-3,8`."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def load_torch_library() -> Thread | None:
    """Begin to load torch's largest library in a thread, and return the thread; None if torch is
    imported already.

    That takes a quarter of torch's import. The library is C++ and needs no interpreter, so it loads
    beside whatever is done before torch is imported, which then finds it loaded. Only imports of
    extension modules wait for it: the system's loader loads one library at a time.
    """
    if "torch" in sys.modules or not sys.platform.startswith("linux"):
        return None
    import ctypes
    from importlib.util import find_spec
    from threading import Thread

    spec = find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        library = os.path.join(folder, "lib", "libtorch_cpu.so")
        if os.path.exists(library):
            path = os.fsencode(library), os.RTLD_NOW | os.RTLD_LOCAL
            # A foreign call: unlike `ctypes.CDLL`, it lets other threads run.
            load = ctypes.CDLL(None).dlopen
            thread = Thread(target=load, args=path, name="inferno torch library", daemon=True)
            thread.start()
            return thread
    return None


def no_nccl_monitor() -> None:
    """Keep torch's monitor of NCCL from ending this process, unless the user has set it: the
    engine's heartbeat ends ranks that hang, and says which one did."""
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")


def sleep_at_barriers() -> None:
    """Make OpenMP threads spin for 0.4 ms at a barrier and then sleep, unless the user has said how
    long (`GOMP_SPINCOUNT`), or whether to (`OMP_WAIT_POLICY`).

    By default they spin for milliseconds. On a busy machine a spinning thread takes the core that
    its own teammate needs, and a step becomes ten times slower. libgomp reads the variable once,
    when torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def give_memory_back() -> None:
    """Free what is in cycles of references, as a model and its captured steps are, and return to
    the system what C's allocator keeps for later."""
    import ctypes
    import gc

    gc.collect()
    if sys.platform.startswith("linux"):  # musl's allocator keeps little, and has no such call
        getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)


def keep_freed_memory() -> None:
    """Make C's allocator keep up to 256 MiB of what was freed for later.

    A step of an encoder takes and frees some 50 MB in pieces of up to 32. glibc would return them
    to the system after most layers, and wait for it to clear them for the next: a tenth to a sixth
    of an embedder's time.
    """
    import ctypes

    if not sys.platform.startswith("linux"):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: 0)  # musl has none
    trim_threshold, mmap_threshold = -1, -3
    set_option(trim_threshold, 256 * 2**20)
    set_option(mmap_threshold, 32 * 2**20)  # the largest allowed


def starved(error: BaseException) -> SystemLimitError | None:
    """Return what to tell of an error that comes of a limit of the system: of memory, threads or
    open files, whatever else was made of it since. None for all others."""
    import errno

    from inferno.errors import SystemLimitError, causes

    for origin in causes(error):
        code = origin.errno if isinstance(origin, OSError) else None
        text = str(origin)
        if code in (errno.EMFILE, errno.ENFILE):
            return SystemLimitError(
                "the system lets this process open no more files",
                "Raise the limit: `ulimit -n 4096`, or LimitNOFILE= of a systemd service.",
            )
        if any(each in text for each in _NO_THREAD) or (
            code == errno.EAGAIN and _starts_process(origin)
        ):
            return SystemLimitError(
                "the system lets this user start no more threads",
                "Raise the limit: `ulimit -u`, TasksMax= of a systemd service, or pids of a "
                "container.",
            )
        lacks = code == errno.ENOMEM or any(each in text for each in _NO_MEMORY)
        if lacks or isinstance(origin, MemoryError):
            return SystemLimitError(
                "the system gives this process no more memory",
                "Raise the limit of its address space (`ulimit -v`), or lower --memory.",
            )
    return None


def _starts_process(error: BaseException) -> bool:
    """Whether an error was raised where a process is started: the code says the same of sockets,
    where it is usual."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == "_execute_child"
