"""Mixes: which scheme each matrix of a model gets when it is quantized while loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.architectures import Architecture


@frozen(kw_only=True)
class DenseMatrices:
    """The dense matrices of a model that may be quantized while loading."""

    shapes: Mapping[str, tuple[int, int]]
    """Module path -> rows and columns, layer by layer. Without routers and the like, which stay as
    they are."""
    architecture: Architecture
    config: Mapping[str, Any]
    """The checkpoint's config."""


@frozen
class Mixed:
    """The scheme that a mix gives to a matrix."""

    scheme: str
    why: str
    """As a phrase: "half of the layers", "output head"."""


@frozen(kw_only=True)
class QuantMix:
    """A recipe that gives schemes to a model's matrices, under a name that users know."""

    name: str
    choose: Callable[[DenseMatrices, bool], Mapping[str, Mixed]] = field(converter=lazy.function)
    """choose(matrices, weighted) -> a scheme for each matrix, by path; those without one stay as
    they are. `weighted`: the importance of columns is known. Imports no torch."""
    spellings: tuple[str, ...] = ()
    """Other names for it. Case, hyphens and underscores never matter."""
