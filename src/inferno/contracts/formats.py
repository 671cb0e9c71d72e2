"""Formats of whole checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.architectures import Architecture
from inferno.contracts.checkpoints import Checkpoint
from inferno.contracts.dialect import Dialect
from inferno.contracts.encoder_files import EncoderFile
from inferno.contracts.mixes import DenseMatrices, QuantMix


def _none_beside(path: Path, architectures: Sequence[Architecture]) -> Sequence[EncoderFile]:
    return ()


@frozen(kw_only=True)
class CheckpointFormat:
    """A way to store a model on disk."""

    name: str
    matches: Callable[[Path], bool] = field(converter=lazy.function)
    """Whether `path` has this format, judged by names or first bytes only."""
    open: Callable[[Path, Sequence[Architecture]], Checkpoint] = field(converter=lazy.function)
    """open(path, architectures): reads and checks the headers. Imports no torch. A format with its
    own names translates them by the installed architectures' dialects. Raises CheckpointError if a
    file is damaged."""
    dialect: Dialect | None = None
    """How its files name the fields and modules of most architectures; `Architecture.dialects`
    override it. None: Hugging Face's names."""
    mixes: tuple[QuantMix, ...] = ()
    """What its own tools call mixes of quantization schemes, for in-situ quantization."""
    importance: Callable[[Path, DenseMatrices], Mapping[str, Any] | None] | None = field(
        default=None, converter=lazy.optional
    )
    """importance(path, matrices) -> how much each column of the matrices counts, by module path: an
    array of NumPy, float32 (columns,). None if the file is not such a file of this format. Imports
    no torch. Raises OptionError if the file is damaged or belongs to another model."""
    encoders: Callable[[Path, Sequence[Architecture]], Sequence[EncoderFile]] = field(
        default=_none_beside, converter=lazy.function
    )
    """encoders(path, architectures) -> the files beside a model's that may hold its encoder of
    images, best first. Imports no torch."""
    join: Callable[[Checkpoint, Path, Sequence[Architecture]], Checkpoint] | None = field(
        default=None, converter=lazy.optional
    )
    """join(checkpoint, file, architectures) -> an opened model of this format with the encoder that
    the file holds, as the original checkpoint has both. Imports no torch before a tensor is read.
    Raises CheckpointError if the file is damaged or of another model; then `checkpoint` is open.
    None: its models are whole."""
    priority: int = 0
    api_version: int = 1
