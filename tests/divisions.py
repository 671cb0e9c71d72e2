"""What tests ask of a division among ranks."""

from __future__ import annotations

from inferno.contracts import HeldMatrix
from inferno.plan.ranks import Division


def local_of(division: Division, path: str) -> HeldMatrix:
    """What the largest rank holds of a matrix, of which it holds some."""
    local = division.local(path)
    assert local is not None
    return local
