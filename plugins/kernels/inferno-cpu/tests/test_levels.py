"""Which level of the kernels is chosen, and by whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferno.contracts import KernelProvider
from inferno.errors import OptionError
from inferno_cpu import _levels, _native, inferno_kernels
from inferno_cpu.level import level

BEST_FIRST = ["amx", "avx512", "avx512vnni", "avxvnni", "avx2", "sse4.2", "portable"]
"""The levels of x86-64."""


@pytest.fixture
def provider() -> KernelProvider:
    [provider] = inferno_kernels()
    return provider


def test_the_module_of_kernels_offers_what_the_plan_is_told() -> None:
    assert _native.available() == _levels.available()
    assert _levels.available()[-1] == "portable"


@pytest.mark.skipif("sse4.2" not in _levels.available(), reason="levels of x86-64")
def test_levels_are_listed_best_first() -> None:
    available, order = _levels.available(), list(BEST_FIRST)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and "GenuineIntel" in cpuinfo.read_text():
        order[1:3] = ["avx512vnni", "avx512"]  # bfloat16 by vectors at half the speed of float32
    assert available == [name for name in order if name in available]


def test_the_best_level_is_the_default(
    provider: KernelProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert provider.level is not None
    monkeypatch.delenv("INFERNO_CPU_LEVEL", raising=False)
    assert provider.level() == _levels.available()[0]
    monkeypatch.setenv("INFERNO_CPU_LEVEL", "")
    assert level() == _levels.available()[0]


def test_a_variable_forces_a_lower_level(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _levels.available():
        monkeypatch.setenv("INFERNO_CPU_LEVEL", name)
        assert level() == name


def test_a_level_that_cannot_run_is_an_error_with_those_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("avx9", "AVX2", *(set(BEST_FIRST) - {*_levels.available()})):
        monkeypatch.setenv("INFERNO_CPU_LEVEL", name)
        with pytest.raises(OptionError) as raised:
            level()
        assert raised.value.cause == (
            f"INFERNO_CPU_LEVEL is '{name}', but this machine runs {', '.join(_levels.available())}"
        )
        assert raised.value.remedy


def in_a_new_process(level: str) -> subprocess.CompletedProcess[str]:
    """Print the level that kernels are computed with, if the variable names `level`."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import _native; print(_native.selected())"
    return subprocess.run(
        [sys.executable, "-c", code, Path(_native.__file__).parent],
        env=os.environ | {"INFERNO_CPU_LEVEL": level},
        capture_output=True,
        text=True,
    )


def test_kernels_of_a_new_process_obey_the_variable() -> None:
    for name in _native.available():
        assert in_a_new_process(name).stdout.strip() == name
    failed = in_a_new_process("avx9")
    assert failed.returncode != 0 and "INFERNO_CPU_LEVEL is 'avx9'" in failed.stderr
