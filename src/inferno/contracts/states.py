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
    heads: int = 0
    """How many heads, or channels by themselves, several ranks may share; 0: each keeps the whole
    state. Tensors of a state that is shared are `conv`, (taps - 1, channels), and `state`, (heads,
    ...)."""
    groups: int = 0
    """Groups of equally many neighbouring heads that share channels of `conv`; ranks with heads of
    one group each keep those. 0: each channel belongs to a head."""
    group_channels: int = 0
    """Channels of `conv` that belong to one group."""

    def part(self, heads: int, groups: int) -> StateSpec:
        """Return the spec of a part of the state, with this many heads and groups."""
        tensors = dict(self.tensors)
        if (state := tensors.get("state")) is not None:
            tensors["state"] = evolve(state, shape=(heads, *state.shape[1:]))
        if (conv := tensors.get("conv")) is not None:
            taps, channels = conv.shape
            tensors["conv"] = evolve(conv, shape=(taps, self.sized(channels, heads, groups)))
        assert {*tensors} <= {"conv", "state"}, "another tensor is not divided by heads"
        return evolve(self, tensors=tensors, heads=heads, groups=min(self.groups, groups))

    def sized(self, size: int, heads: int, groups: int) -> int:
        """Return how many of as many numbers as a matrix has for all channels of `conv`, and more
        for each head, belong to these heads and groups."""
        shared = self.groups * self.group_channels
        return (size - shared) // self.heads * heads + min(
            self.groups, groups
        ) * self.group_channels

    def resolved(self, dtype: DType) -> dict[str, CacheTensor]:
        """Return the tensors with the compute dtype filled in."""
        return {
            name: evolve(tensor, dtype=dtype) if tensor.dtype == COMPUTE else tensor
            for name, tensor in self.tensors.items()
        }
