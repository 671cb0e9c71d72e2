"""The provider through the catalog, on each instruction set."""

from __future__ import annotations

import pytest

from inferno.testing import AttentionBackendTests, KernelProviderTests
from inferno_cpu import _native

pytestmark = pytest.mark.usefixtures("isa")


def test_instruction_sets_are_selected_by_name(isa: str) -> None:
    assert _native.selected() == isa and _native.available()[-1] == "portable"
    with pytest.raises(ValueError, match="cannot run avx9"):
        _native.select("avx9")
    assert _native.selected() == isa


class TestCpu(KernelProviderTests):
    provider = "cpu"
    linear_tolerance = 6.0  # activations are rounded to int8 in groups of 32


class TestAttention(AttentionBackendTests):
    backend = "cpu"
    block_sizes = (16, 32)


def test_the_limit_of_each_type_is_measured() -> None:
    assert all(_native.peak(type) > 1e6 for type in ("float32", "bfloat16", "int8"))
    with pytest.raises(ValueError, match="float8"):
        _native.peak("float8")
