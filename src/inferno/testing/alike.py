"""Tests with many cases that are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Test = TypeVar("_Test", bound=Callable[..., object])


def alike(test: _Test) -> _Test:
    """Say that the cases of a test are alike: of a file that has it, by itself or by inheritance,
    `make test` runs the first one, and `make test-all` all of them. Of the files of a test but the
    first, `make test` takes every third, other ones for each test. A run of one plugin's tests
    takes all cases."""
    test.__dict__["alike"] = True
    return test


def in_turn(test: _Test) -> _Test:
    """Say that a test joins two things with which other tests run each class of its file by
    themselves: ranks and adapters, say. Any two of class, ranks and adapters are then tested
    together in full; of all three, a run of the whole repository takes the first class of each
    file, and of the others every third, another for each such test. A run of one plugin's tests
    takes them all."""
    test.__dict__["in_turn"] = True
    return test
