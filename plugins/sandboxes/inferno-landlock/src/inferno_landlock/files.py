"""Landlock by its three system calls: which files a thread, and all that it starts, may use.

The library `landlock` of PyPI has pre-releases only, and knows neither scopes nor devices.
Source: https://docs.kernel.org/userspace-api/landlock.html, include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""System calls, of the same numbers on every machine."""
_CREATE_VERSION, _RULE_PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, MAKE_SOCK = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 9
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

_READ = READ_FILE | READ_DIR
# No links: another process may follow one out of the folder.
_WRITE = _READ | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG
_WRITE |= MAKE_SOCK | REFER
_OF_FILES = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
"""Rights that a rule for a file, not for a folder, may have."""
_TCP = 3
"""Bind and connect."""
_SCOPES = 3
"""Abstract sockets, and signals, of processes outside."""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("fs", ctypes.c_uint64),
        ("net", ctypes.c_uint64),  # since version 4
        ("scoped", ctypes.c_uint64),  # since version 6
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _call(number: int, *args: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result


def version() -> int:
    """Return Landlock's version in the running kernel; 0 if it has none, or it is off."""
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION))
    except OSError:
        return 0


def _known(version: int) -> int:
    """Return the rights that this version handles."""
    if version < 2:
        return REFER - 1
    if version < 3:
        return TRUNCATE - 1
    return (IOCTL_DEV << 1) - 1 if version >= 5 else IOCTL_DEV - 1


def restrict(*, runs: Iterable[str], reads: Iterable[str], writes: Iterable[str]) -> None:
    """Allow this thread, and what it starts from now on, to read and run programs beneath `runs`,
    to read beneath `reads`, and to read and write beneath `writes`: files or folders, of which
    those that do not exist are passed over. No TCP, and no signals to others, where the kernel
    can. Raises OSError."""
    here = version()
    handled = _known(here)
    given = _Ruleset(handled, _TCP if here >= 4 else 0, _SCOPES if here >= 6 else 0)
    size = 24 if here >= 6 else 16 if here >= 4 else 8
    rules = _call(_CREATE, ctypes.byref(given), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for paths, rights in ((runs, _READ | EXECUTE), (reads, _READ), (writes, _WRITE)):
            for path in dict.fromkeys(paths):
                with suppress(FileNotFoundError, NotADirectoryError):
                    _allow(rules, path, rights & handled)
        _call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except PermissionError:  # what it may not see now, it need not be allowed
        return
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= _OF_FILES
        rule = _PathBeneath(rights, parent)
        _call(_ADD, ctypes.c_int(rules), _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
    except OSError as error:
        if error.errno != errno.EBADFD:  # a file that is in no file system, such as a pipe
            raise
    finally:
        os.close(parent)
