"""The tensors behind blocks and slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from attrs import frozen

from inferno.core.types import Copy

if TYPE_CHECKING:
    from torch import Tensor, nn

    from inferno.contracts import CacheTensor
    from inferno.core.types import Move
    from inferno.device.places import Places
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
        ids = range(1 + max(caches, default=-1))  # without those of other stages
        return cls.allocate(
            [caches.get(i, {}) for i in ids],
            [units.get(i, 0) for i in ids],
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
        from inferno.device.zeros import zeros

        counts = [num_units] * len(layouts) if isinstance(num_units, int) else num_units
        counted = [
            (count, tensor)
            for layout, count in zip(layouts, counts, strict=True)
            for tensor in layout.values()
        ]
        tensors = zeros(counted, device)
        return cls(
            tuple({name: next(tensors) for name in layout} for layout in layouts),
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

    @cached_property
    def places(self) -> tuple[Places, ...]:
        """The bytes of each group's layers: what is copied, saved and loaded."""
        from inferno.device.places import Places

        def tensors(layer: int) -> list[Tensor]:
            return [tensor for _, tensor in sorted(self.layers[layer].items())]

        return tuple(Places.of([t for i in layers for t in tensors(i)]) for layers in self.groups)

    def move(self, moves: Sequence[Move]) -> None:
        """Copy whole places in every layer of their groups, in order: what one move copied may be
        another's source."""
        self.copy([Copy(*move[1:]) for move in moves])

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy whole places in every layer of their groups, or clear them, in order."""
        for group in dict.fromkeys(copy.group for copy in copies):
            self.places[group].copy([copy[1:] for copy in copies if copy.group == group])
