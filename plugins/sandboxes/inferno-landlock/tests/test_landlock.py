"""The sandbox `landlock`: the kit's attempts, and its filter instruction by instruction."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys

import pytest

from inferno.errors import UnsupportedError
from inferno.testing import SandboxTests
from inferno_landlock import box, files, syscalls

SIGNAL, ABSTRACT = 6, 6
"""Versions of Landlock that know them."""


class TestLandlock(SandboxTests):
    sandbox = "landlock"


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Run the filter as the kernel does. Returns 0 if the call is made, else its error, or -1 if
    the process is killed."""
    program = list(struct.iter_unpack("=HBBI", syscalls.program(machine)))
    column, native = syscalls.MACHINES[machine]
    slots = arguments + (0,) * (6 - len(arguments))
    architecture = native if architecture is None else architecture
    data = struct.pack("<iIQ6Q", number, architecture, 0, *slots)
    at = register = 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x20:
            [register] = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return {0x7FFF0000: 0, 0x80000000: -1}.get(value, int(value) & 0xFFFF)
        else:
            taken = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}
            at += yes if taken[code] else no


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_forbidden_calls_fail_and_others_are_made(machine: str) -> None:
    column, _ = syscalls.MACHINES[machine]
    for numbers in syscalls.FORBIDDEN.values():
        if (number := numbers[column]) is not None:
            assert verdict(machine, number) == errno.EPERM
    argued = {name: numbers[column] for name, numbers in syscalls.ARGUED.items()}
    used = {
        numbers[column] for numbers in (*syscalls.FORBIDDEN.values(), *syscalls.ARGUED.values())
    }
    assert all(verdict(machine, number) == 0 for number in {*range(470)} - used)
    for name in ("socket", "socketpair"):
        assert verdict(machine, argued[name], 1) == 0
        assert {verdict(machine, argued[name], family) for family in (0, 2, 10, 16, 17, 40)} == {
            errno.EACCES
        }
    assert verdict(machine, argued["clone3"]) == errno.ENOSYS
    threads = 0x3D0F00
    assert verdict(machine, argued["clone"], threads) == 0
    assert verdict(machine, argued["clone"], threads | 0x10000000) == errno.EPERM
    assert verdict(machine, argued["ioctl"], 0, 0x5401) == 0
    assert verdict(machine, argued["ioctl"], 0, 0x5412) == errno.EPERM
    # The kernel looks at the lower half of a command and of a family, and so does the filter.
    assert verdict(machine, argued["ioctl"], 0, 0xFF00005412) == errno.EPERM
    assert verdict(machine, argued["socket"], 2**32 + 2) == errno.EACCES
    assert verdict(machine, 1, architecture=0x40000003) == -1


def test_the_other_calling_convention_of_x86_64_is_closed() -> None:
    assert verdict("x86_64", 0x40000000 | 41, 2) == errno.ENOSYS


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_devices_whose_drivers_are_not_tested_are_refused(device: str) -> None:
    assert device in (box.refuses(device) or "")


@pytest.mark.parametrize(("version", "missing"), [(1, 4), (3, 3), (5, 2), (7, 1)])
def test_an_older_kernel_says_what_does_not_hold(
    version: int, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "version", lambda: version)
    assert len(box.lacks()) == missing
    assert str(version) in box.holds()[0]


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_and_kernels_without_landlock_are_refused(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "version", lambda: 0)
    if sys.platform.startswith("linux"):
        assert "Landlock is off" in (box.refuses("cpu") or "")
    monkeypatch.setattr(sys, "platform", system)
    assert "Linux" in (box.refuses("cpu") or "")


def confined(code: str) -> str:
    """Run code in a confined process. Returns what it prints."""
    start = "import ctypes, os, socket\nfrom inferno.contracts import Confinement\n"
    start += "from inferno_landlock.box import confine\nconfine(Confinement())\n"
    done = subprocess.run(
        [sys.executable, "-Pc", start + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(files.version() < 1, reason="no Landlock here")
def test_calls_that_the_kit_has_no_name_for_fail() -> None:
    """io_uring is open to everyone, where it is there; user namespaces often are."""
    code = """
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(256)
for number, arguments in ((425, (1, room)), (438, (-1, 0, 0))):
    libc.syscall(ctypes.c_long(number), *arguments)
    print(ctypes.get_errno(), end=" ")
print(libc.unshare(0x10000000), ctypes.get_errno(), end=" ")
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
except OSError as error:
    print(error.errno)
"""
    assert confined(code) == f"{errno.EPERM} {errno.EPERM} -1 {errno.EPERM} {errno.EACCES}"


@pytest.mark.skipif(files.version() < SIGNAL, reason="this kernel's Landlock has no scopes")
def test_no_signal_leaves_and_no_abstract_socket_is_reached() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        code = f"try:\n  os.kill({other.pid}, 9)\nexcept PermissionError:\n  print('kept')"
        assert confined(code) == "kept"
        other.kill()
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0inferno-test-of-landlock")
        listener.listen()
        code = "try:\n  socket.socket(socket.AF_UNIX).connect('\\0inferno-test-of-landlock')\n"
        assert confined(code + "except PermissionError:\n  print('kept')") == "kept"


def test_a_kernel_that_refuses_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**kwargs: object) -> None:
        raise OSError(errno.EPERM, "Landlock: not permitted")

    monkeypatch.setattr("os.listdir", lambda path: ["1"])
    monkeypatch.setattr(files, "restrict", refuse)
    monkeypatch.setattr(box, "no_new_privileges", lambda: None)
    from inferno.contracts import Confinement

    with pytest.raises(UnsupportedError, match="not permitted") as caught:
        box.confine(Confinement())
    assert "--sandbox" in caught.value.remedy
