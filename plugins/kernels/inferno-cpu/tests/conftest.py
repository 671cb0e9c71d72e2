"""Tests of kernels run once for each instruction set that this machine can run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inferno_cpu import _native

HERE = Path(__file__).parent
DAILY = {_native.available()[0], "avx2"}
"""The best level of this machine, and the one that most x86-64 machines run."""
WITHOUT_GRIDS = {"test_provider", "test_levels", "test_recording", "test_reserve", "test_packing"}
"""Modules that are daily on every level: the conformance kit's is one."""


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the grids of the other levels as slow: the kernels of all levels are one source."""
    for item in items:
        if item.path.parent == HERE and item.path.stem not in WITHOUT_GRIDS:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            if parameters.get("isa", "avx2") not in DAILY:
                item.add_marker("slow")


@pytest.fixture(params=_native.available())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Select one instruction set; afterwards restore the previous one and the thread count."""
    selected, threads = _native.selected(), _native.threads()
    _native.select(request.param)
    yield request.param
    _native.select(selected)
    _native.set_threads(threads)
