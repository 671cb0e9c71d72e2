"""What `--sandbox` allows on Linux."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from inferno.contracts import Confinement
from inferno.errors import UnsupportedError
from inferno_landlock import files, syscalls

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/nix/store", "/gnu/store")
"""Programs and libraries of the system: nothing in them is secret."""
_FACTS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",  # names of users; their secrets are in shadow
    "/etc/group",
    "/etc/os-release",
    "/dev/urandom",
    "/dev/random",
    "/dev/zero",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/self",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/proc/version",
)
"""What libraries ask of the machine. The rest of /proc has other processes' environments."""
_WRITTEN = ("/dev/null",)
_PR_SET_NO_NEW_PRIVS = 38

_LACKS = (
    (3, "a file elsewhere that this user may write can be emptied"),
    (5, "devices that are open take any command"),
    (6, "signals reach this user's other processes, and sockets without a file can be reached"),
)


def refuses(device: str) -> str | None:
    if not sys.platform.startswith("linux"):
        return f"Landlock and seccomp are Linux's, and this is {platform.system()}"
    if platform.machine() not in syscalls.MACHINES:
        return f"it knows the system calls of {' and '.join(syscalls.MACHINES)} only"
    if device != "cpu":
        return f"it is not tested with the drivers of {device}: add --device cpu"
    if files.version() < 1:
        return "this system's Landlock is off: it takes Linux 5.13, with landlock among `lsm=`"
    if not syscalls.filters():
        return "this system's kernel has no seccomp filters"
    return None


def holds() -> tuple[str, ...]:
    return (
        f"files (Landlock {files.version()})",
        "no network, no tracing, no mounts (seccomp)",
        "no new privileges",
    )


def lacks() -> tuple[str, ...]:
    version = files.version()
    missing = [what for since, what in _LACKS if version < since]
    return (*missing, "sockets with a file that this user may use can be reached")


def confine(what: Confinement) -> None:
    """Confine this process for good. Raises UnsupportedError if it has other threads, which would
    stay as they are, or the kernel refuses."""
    if (running := len(os.listdir("/proc/self/task"))) > 1:
        raise UnsupportedError(
            f"a process with {running} threads cannot be confined",
            "A plugin starts threads while it is imported: find it with --disable NAME.",
        )
    try:
        no_new_privileges()
        files.restrict(
            runs=[*_SYSTEM, *_python()],
            reads=[*_FACTS, *what.reads],
            writes=[*_WRITTEN, *what.writes],
        )
        syscalls.restrict()
    except OSError as error:
        raise UnsupportedError(
            f"the kernel does not confine this process: {error}",
            "Run it outside of a container that forbids that, or without --sandbox.",
        ) from error


def no_new_privileges() -> None:
    """Let programs that are started have no more rights than this process. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _python() -> Iterator[str]:
    """Yield the folders of this interpreter and of what it may import."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).parent))
    # A process that is to be confined is started with PYTHONSAFEPATH: the folder that the user
    # happens to be in, which may be their home, is not in the path.
    yield from (folder for folder in sys.path if folder)
