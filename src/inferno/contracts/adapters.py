"""Low-rank adapters: y = W x + scale · B (A x) instead of y = W x, for some matrices of a model
(arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.architectures import Architecture

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class AdapterBase:
    """The model that an adapter is for."""

    architecture: Architecture
    """The plugin's declaration."""
    config: Mapping[str, Any]
    """Its `config.json`."""
    merging: bool = False
    """Whether the adapter will be merged into the model, so that it may be more than pairs."""


@frozen
class LowRank:
    """The pair of one matrix, as headers tell it."""

    rank: int
    """Rows of A and columns of B."""
    scale: float
    """Factor of B A."""
    inputs: int
    """Columns of A."""
    outputs: int
    """Rows of B."""


class AdapterFile(Protocol):
    """An adapter whose headers are read. One of a format that scales the rows of merged matrices to
    norms of their own (DoRA) has a method `magnitudes`, which returns the norms by path, each
    (outputs,); there are none unless the base says that it is `merging`."""

    @property
    def digest(self) -> str:
        """128 bits in hexadecimal of a cryptographic hash over all bytes that its answers depend
        on: what is computed with another adapter of the same name is never reused."""
        ...

    @property
    def pairs(self) -> Mapping[str, LowRank]:
        """By the module's path in the checkpoint of the model."""
        ...

    def read(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Read every pair: A (rank, inputs) and B (outputs, rank), in any dtype, without the scale.
        Raises CheckpointError if the file is not the one with this digest any more."""
        ...


@frozen(kw_only=True)
class AdapterFormat:
    """A way to store adapters on disk."""

    name: str
    matches: Callable[[Path], bool] = field(converter=lazy.function)
    """Whether `path` has this format, judged by names or first bytes only."""
    open: Callable[[Path, AdapterBase], AdapterFile] = field(converter=lazy.function)
    """open(path, base): reads and checks the headers. Imports no torch. Raises CheckpointError if
    the file is damaged, UnsupportedError for adapters that are more than pairs of matrices."""
    priority: int = 0
    api_version: int = 1
