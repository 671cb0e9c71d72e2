"""Recurrent states: what a layer keeps of a sequence, at a size that does not grow with it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from attrs import evolve, field, frozen

from inferno.contracts.attention import CacheTensor, DType

COMPUTE = "compute"
"""Dtype of a state tensor: that of the activations."""


def _copied(tensors: Mapping[str, CacheTensor]) -> Mapping[str, CacheTensor]:
    return dict(tensors)


def _items(tensors: Mapping[str, CacheTensor]) -> Hashable:
    return frozenset(tensors.items())


@frozen(kw_only=True)
class StateSpec:
    """A fixed-size recurrent state that a layer keeps for each sequence: a short convolution's last
    inputs, the matrix of a Mamba or gated-delta-rule layer."""

    tensors: Mapping[str, CacheTensor] = field(converter=_copied, eq=_items)
    """Name -> shape and dtype of one sequence's state; the dtype may be `COMPUTE`. A sequence
    starts from zeros."""

    def resolved(self, dtype: DType) -> dict[str, CacheTensor]:
        """Return the tensors with the compute dtype filled in."""
        return {
            name: evolve(tensor, dtype=dtype) if tensor.dtype == COMPUTE else tensor
            for name, tensor in self.tensors.items()
        }
