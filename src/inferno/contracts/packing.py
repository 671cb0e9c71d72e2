"""Packed weights on disk: what a kernel provider made of a model's matrices, read again by the next
start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from inferno.contracts import lazy

if TYPE_CHECKING:
    from inferno.nn.weight import Weight


class PackedPlace(Protocol):
    """Where a packed weight is in its file."""

    @property
    def offset(self) -> int:
        """In bytes, a multiple of the page size."""
        ...

    @property
    def nbytes(self) -> int: ...


class PackedParts(Protocol):
    """An open file of packed weights. Each is a part with a name, some bytes at a page boundary."""

    @property
    def places(self) -> Mapping[str, PackedPlace]:
        """The provider's own parts, by name, in the order in which they are stored."""
        ...

    def mapped(self, name: str) -> memoryview:
        """Map a part's bytes, which other processes share."""
        ...

    def read_into(self, name: str, to: memoryview, start: int = 0) -> None:
        """Copy a part's bytes, from byte `start` of it. Other threads run meanwhile. Raises OSError
        or ValueError."""
        ...


Take = Callable[[str], memoryview]
"""Returns the bytes of a part, which are not written to, and stay while they are referred to.
Raises OSError or ValueError if they cannot be read."""


@frozen(kw_only=True)
class Packing:
    """How a kernel provider's weights are kept on disk between starts. The bytes may depend on
    nothing but the checkpoint, the installed versions and `version`."""

    version: Callable[[], str | None] = field(converter=lazy.function)
    """Names the provider's layouts, and whatever of this machine they depend on. None: this machine
    gains nothing by it. Imports no torch."""
    save: Callable[[Weight], tuple[Mapping[str, Any], Sequence[memoryview]] | None] = field(
        converter=lazy.function
    )
    """save(weight) -> a description in JSON and the bytes of a weight that the provider's `linear`
    or `grouped` returned; None if it cannot be kept. The bytes stay valid while the weight does."""
    load: Callable[[Mapping[str, Any], memoryview], Weight] = field(converter=lazy.function)
    """load(description, bytes) -> the weight. Raises ValueError if they do not belong together."""
    read: Callable[[PackedParts], AbstractContextManager[Take]] | None = field(
        default=None, converter=lazy.optional
    )
    """read(parts) -> a context manager, entered before torch is imported and left when the model is
    loaded, whose value returns the bytes for `load`. It may copy them to better memory meanwhile.
    Must not import torch. None: parts are mapped."""
