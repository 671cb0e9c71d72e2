"""Tests with many cases that are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Test = TypeVar("_Test", bound=Callable[..., object])


def alike(test: _Test) -> _Test:
    """Say that the cases of a test are alike: of each file that has it, in a class of its own or
    by inheritance, the first one is run by `make test`, and all of them by `make test-all`."""
    test.__dict__["alike"] = True
    return test
