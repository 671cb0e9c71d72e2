"""Which level of the kernels is chosen, and by whom."""

from __future__ import annotations

import subprocess
import sys

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
    available = _levels.available()
    assert available == [name for name in BEST_FIRST if name in available]


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


@pytest.mark.parametrize("name", _levels.available())
def test_kernels_of_a_new_process_obey_the_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERNO_CPU_LEVEL", name)
    code = "from inferno_cpu import _native; print(_native.selected())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == name


def test_kernels_are_not_computed_with_a_level_that_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INFERNO_CPU_LEVEL", "avx9")
    code = "from inferno_cpu import _native; _native.selected()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode != 0 and "INFERNO_CPU_LEVEL is 'avx9'" in found.stderr
