"""The adapters that requests may name, and the room for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from inferno.request.requests import AdapterRef

AdapterTarget = Literal["experts", "vocabulary"]
"""Routed experts; embeddings and output heads."""


@frozen(kw_only=True)
class AdapterUse:
    """A low-rank adapter."""

    adapter: AdapterRef
    ref: str
    rank: int
    """The largest of its pairs."""
    count: int
    """Matrices that it changes."""
    beside: tuple[AdapterTarget, ...] = ()
    """What it changes besides linear layers."""


@frozen(kw_only=True)
class AdapterRoom:
    """Room for low-rank adapters."""

    slots: int
    """How many different ones the running requests may have."""
    rank: int
    """The most that a slot holds."""
    beside: tuple[AdapterTarget, ...] = ()
    """What it is beside, besides linear layers."""
    loaded: tuple[AdapterUse, ...] = ()
    """Those that callers may name from the start."""


@frozen
class AdapterPlaces:
    """Where a pipeline stage has room for adapters, as it tells the rank that checks them."""

    shapes: Mapping[str, tuple[int, int]]
    """Outputs and inputs of whole matrices with room beside them, by path."""
    without: tuple[str, ...]
    """Paths of matrices beside which there could be room."""
