"""A seccomp filter: which system calls a thread, and all that it starts, may not make.

It forbids by name, because what Python, torch and the C library call differs from machine to
machine and from release to release. pyseccomp needs libseccomp, which is not everywhere, for what
are two tables and forty instructions here.
Source: https://docs.kernel.org/userspace-api/seccomp_filter.html, the kernel's system call tables.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN = {
    # name: (x86_64, aarch64)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    # Landlock does not look at these, whosever the file is.
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "removexattrat": (466, 466),
}
"""Calls that fail whatever their arguments. None: the machine has no such call."""
ARGUED = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
}
"""Calls that depend on them."""
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By name, the column of the tables and the architecture's number in filters."""
_X32 = 0x40000000
"""Bit of the numbers of x86_64's other calling convention."""
_NAMESPACES = 0x7E020000
"""Flags of clone that make namespaces."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""Commands by which a process types into its terminal."""
_AF_UNIX = 1

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`. Both machines are little-endian: an argument's lower half comes
first, and the kernel reads only that of the arguments below."""
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


def filters() -> bool:
    """Whether the kernel has seccomp filters."""
    return Path("/proc/sys/kernel/seccomp/actions_avail").exists()


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _fail(code: int) -> bytes:
    return _step(_RETURN, _FAIL | code)


def _if(call: int, *then: bytes) -> Iterator[bytes]:
    """Yield the instructions, of which the first is run if the call has that number."""
    yield _step(_EQUAL, call, 0, len(then))
    yield from then


def program(machine: str) -> bytes:
    """Return the filter for a machine, as instructions of BPF."""
    column, architecture = MACHINES[machine]
    argued = {name: numbers[column] for name, numbers in ARGUED.items()}
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),  # calls of 32-bit programs have other numbers
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        steps += [_step(_AT_LEAST, _X32, 0, 1), _fail(errno.ENOSYS)]
    for numbers in FORBIDDEN.values():
        if (number := numbers[column]) is not None:
            steps += _if(number, _fail(errno.EPERM))
    # Its flags are in memory, which no filter reads. The C library then calls clone.
    steps += _if(argued["clone3"], _fail(errno.ENOSYS))
    allow = _step(_RETURN, _ALLOW)
    for name in ("socket", "socketpair"):
        domain = _step(_LOAD, _ARGUMENTS), _step(_EQUAL, _AF_UNIX, 1, 0), _fail(errno.EACCES)
        steps += _if(argued[name], *domain, allow)
    flags = _step(_LOAD, _ARGUMENTS), _step(_ANY_BIT, _NAMESPACES, 0, 1), _fail(errno.EPERM)
    steps += _if(argued["clone"], *flags, allow)
    steps += _if(
        argued["ioctl"],
        _step(_LOAD, _ARGUMENTS + 8),
        _step(_EQUAL, _TIOCSTI, 1, 0),
        _step(_EQUAL, _TIOCLINUX, 0, 1),
        _fail(errno.EPERM),
        allow,
    )
    return b"".join([*steps, allow])


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def restrict() -> None:
    """Forbid this thread, and what it starts from now on, the calls of the tables and sockets other
    than AF_UNIX. It must have no new privileges. Raises OSError."""
    steps = program(platform.machine())
    descriptor = _Program(len(steps) // 8, steps)
    libc = ctypes.CDLL(None, use_errno=True)
    mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
    if libc.prctl(_PR_SET_SECCOMP, mode, ctypes.byref(descriptor), 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
