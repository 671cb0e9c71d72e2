"""What an encoder's steps free is kept for the next."""

from __future__ import annotations

import subprocess
import sys

import pytest

KEPT = """
import ctypes, sys
from inferno.host import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
if sys.argv[1] == "keep":
    keep_freed_memory()
before, size = resident(), 20 * 2**20
for step in range(2):
    pieces = [libc.malloc(size) for _ in range(4)]
    for piece in pieces:
        libc.memset(piece, 1, size)
    for piece in pieces:
        libc.free(piece)
print((resident() - before) // size)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_c_keeps_what_was_freed_only_if_told_to() -> None:
    def kept(how: str) -> int:
        command = [sys.executable, "-c", KEPT, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert kept("keep") == 4
    assert kept("return") < 4
