"""A quantized checkpoint that can be asked how its matrices are held (`contracts.held`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from inferno.contracts import CheckpointView, HeldMatrix, QuantScheme, StoredMatrix, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor


@frozen(eq=False)
class SchemedView(CheckpointView):
    """A checkpoint as it is, with a function that finds the scheme that loads a matrix."""

    scheme_of: Callable[[StoredMatrix], QuantScheme]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.checkpoint.tensors

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(name)

    def held(self, stored: StoredMatrix) -> HeldMatrix:
        # How tensors lie is the same in every compute dtype.
        return self.scheme_of(stored).holds(stored, "float32")
