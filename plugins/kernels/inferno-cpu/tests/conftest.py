"""Tests of kernels run once for each instruction set that this machine can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferno_cpu import _native


@pytest.fixture(params=_native.available())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Select one instruction set; afterwards restore the previous one and the thread count."""
    selected, threads = _native.selected(), _native.threads()
    _native.select(request.param)
    yield request.param
    _native.select(selected)
    _native.set_threads(threads)
