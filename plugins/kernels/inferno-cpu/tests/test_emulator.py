"""The levels of older processors, on an emulator of such a processor: an instruction that it lacks
would end the process, and results are the same, bit for bit."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferno_cpu import _native

EMULATOR = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
FOLDER = Path(_native.__file__).parent
PROCESSORS = {
    "qemu64": ["portable"],
    "Nehalem": ["sse4.2", "portable"],
    "Haswell": ["avx2", "sse4.2", "portable"],
}

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of x86-64"),
    pytest.mark.skipif(EMULATOR is None, reason="no qemu-x86_64: install qemu-user-static"),
]


def digests(*emulator: str) -> Any:
    done = subprocess.run(
        [*emulator, sys.executable, Path(__file__).with_name("digests.py"), FOLDER],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here() -> Any:
    return digests()


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_an_older_processor_computes_the_same(processor: str, here: Any) -> None:
    assert EMULATOR is not None
    emulated = digests(EMULATOR, "-cpu", processor)
    assert list(emulated) == PROCESSORS[processor]
    for level, each in emulated.items():
        assert each == here[level], level
