"""The tensors behind blocks and slots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor, nn

    from inferno.contracts import CacheTensor
    from inferno.core.types import Copy, Move
    from inferno.plan import Plan


@frozen(eq=False)
class KVCache:
    """Every layer's cache tensors, by layer id: an attention layer's keys and values in its
    backend's layout, each (blocks, *shape of one block); a recurrent layer's states, each (slots,
    *shape of one state). All layers of a group have the same number of blocks or slots."""

    layers: tuple[Mapping[str, Tensor], ...]
    groups: tuple[tuple[int, ...], ...] = ()
    """The layers of each group."""

    @classmethod
    def of_plan(cls, plan: Plan) -> KVCache:
        """Allocate the plan's cache."""
        caches = {layer: use.cache for use in plan.attention for layer in use.layers}
        caches |= {layer: use.cache for use in plan.states for layer in use.layers}
        units = {layer: group.num_units for group in plan.groups for layer in group.layers}
        ids = range(len(caches))
        return cls.allocate(
            [caches[i] for i in ids],
            [units[i] for i in ids],
            plan.device.torch_name,
            tuple(group.layers for group in plan.groups),
        )

    @classmethod
    def allocate(
        cls,
        layouts: Sequence[Mapping[str, CacheTensor]],
        num_units: int | Sequence[int],
        device: str,
        groups: tuple[tuple[int, ...], ...] = (),
    ) -> KVCache:
        """Allocate one layout per layer. `num_units` is the number of blocks or slots, for all
        layers or for each."""
        counts = [num_units] * len(layouts) if isinstance(num_units, int) else num_units
        return cls(
            tuple(
                {name: _zeros(count, tensor, device) for name, tensor in layout.items()}
                for layout, count in zip(layouts, counts, strict=True)
            ),
            groups,
        )

    def bind(self, model: nn.Module) -> None:
        """Give every attention and state layer its tensors, and attention the group of these."""
        from inferno.nn import Attention, State

        group_of = {layer: i for i, layers in enumerate(self.groups) for layer in layers}
        for module in model.modules():
            if isinstance(module, Attention | State):
                module.cache = self.layers[module.layer_id]
            if isinstance(module, Attention):
                module.group = group_of[module.layer_id]

    def move(self, moves: Sequence[Move]) -> None:
        """Copy whole places in every layer of their groups, in order: what one move copied may be
        another's source."""
        for move in moves:
            for layer in self.groups[move.group]:
                for tensor in self.layers[layer].values():
                    tensor[move.target] = tensor[move.source]

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy whole places in every layer of their groups, or clear them, all at once: no place is
        both a source and a target."""
        from inferno.device.staging import sent

        for group in dict.fromkeys(copy.group for copy in copies):
            of_group = [copy for copy in copies if copy.group == group]
            cleared = [copy.target for copy in of_group if copy.source is None]
            pairs = [(c.source, c.target) for c in of_group if c.source is not None]
            sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
            for layer in self.groups[group]:
                for tensor in self.layers[layer].values():
                    if cleared:
                        tensor[sent(cleared, tensor.device)] = 0
                    if pairs:
                        copied = tensor[sent(sources, tensor.device)]
                        tensor[sent(targets, tensor.device)] = copied


def _zeros(count: int, tensor: CacheTensor, device: str) -> Tensor:
    import torch

    shape, dtype = (count, *tensor.shape), getattr(torch, tensor.dtype)
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # The operating system zeroes these pages on first touch, so unused blocks cost no memory.
    # `torch.zeros` would write them all: that takes seconds and makes the whole budget resident.
    pages = mmap(-1, math.prod(shape) * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
