"""What a model's layers share to fetch modules from the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from inferno.device.offload import own_tensors, tensors_of
from inferno.device.side_queue import HostCopies, Mark, SideQueue, side_queue
from inferno.errors import UnsupportedError

BUFFERS = 2
"""Experts that are on the device at once: one is multiplied while the next one is copied."""
MOST_KINDS = 16
"""Kinds of experts that may need buffers of their form each."""


@define(eq=False)
class Buffer:
    """An expert on the device, whose tensors are overwritten by those of others."""

    product: Callable[[Tensor, Tensor], Tensor]
    """`ExpertGroup.product` of the expert."""
    tensors: list[Tensor]
    free: Mark
    """Where the main queue no longer reads it."""


@define(eq=False)
class Buffers:
    """Those of experts of one form, used in turn."""

    all: list[Buffer] = field(factory=list)
    _turn: int = 0

    def next(self) -> Buffer:
        self._turn = (self._turn + 1) % len(self.all)
        return self.all[self._turn]


@frozen(eq=False)
class KeptExpert:
    """An expert's tensors in page-locked host memory, in the order of a buffer's."""

    tensors: tuple[Tensor, ...]
    buffers: Buffers


@define(eq=False)
class Fetching:
    """What a model's layers share to fetch experts: buffers on the device, host memory, and a
    second queue of copies."""

    device: str
    """torch's name of the device."""
    queue: SideQueue = field(init=False)
    times: tuple[tuple[int, float, float], ...] = ()
    """What was measured of a layer: tokens, and the seconds in which the host computes their
    experts, and in which the device fetches and computes them."""
    copy_rate: float = 0.0
    """Bytes that were copied in a second."""
    fits: bool = True
    """Whether the experts so far have at most `MOST_KINDS` forms (types, shapes, strides)."""
    held: nn.Module = field(init=False, factory=nn.Module)
    """Has the buffers' tensors. All layers contain it, so that a model that sleeps frees them."""
    _copies: HostCopies = field(init=False)
    _kinds: dict[Any, Buffers] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.queue, self._copies = side_queue(self.device), HostCopies(self.device)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers on the device."""
        buffers = [each for kind in self._kinds.values() for each in kind.all]
        return sum(tensor.nbytes for each in buffers for tensor in each.tensors)

    def free(self) -> None:
        """Free the buffers, and host memory for further copies: nothing is fetched."""
        self._kinds, self.held = {}, nn.Module()
        self._copies = HostCopies(self.device)

    def keep(self, group: nn.Module, product: Callable[[Tensor, Tensor], Tensor]) -> KeptExpert:
        """Copy an expert to the host. `group` has it alone, on the device, and `product` multiplies
        by it: the first ones become buffers. Raises UnsupportedError if there are too many
        kinds."""
        kind = self._kinds.setdefault(_kind_of(group), Buffers())
        if len(self._kinds) > MOST_KINDS:
            self.fits = False
            raise UnsupportedError(
                f"the experts on the host have more than {MOST_KINDS} forms (types, shapes), and "
                "each needs buffers on the device",
                "Let the host compute them: --fetch-experts-from never.",
            )
        tensors = _distinct(group)
        kept = tuple(map(self._copies.of, tensors))
        if len(kind.all) < BUFFERS:
            kind.all.append(Buffer(product, tensors, self.queue.mark()))
            for number, tensor in enumerate(tensors, len(self.held._buffers)):
                self.held.register_buffer(str(number), tensor.detach(), persistent=False)
        return KeptExpert(kept, kind)


def _distinct(group: nn.Module) -> list[Tensor]:
    """Return each tensor of a module once."""
    tensors = [tensor for tensor in tensors_of(group) if tensor.nbytes]
    return list({(tensor.data_ptr(), tensor.nbytes): tensor for tensor in tensors}.values())


def _kind_of(group: nn.Module) -> Any:
    """Return what experts have in common that can be in one buffer: modules, shapes, numbers."""
    simple = (int, float, str, bool, tuple, torch.dtype, type(None))
    return tuple(
        (
            name,
            type(module),
            *((t.shape, t.dtype, t.stride()) for t in own_tensors(module)),
            *sorted(
                (key, repr(value))
                for key, value in vars(module).items()
                if isinstance(value, simple) and key not in ("source", "sources")
            ),
        )
        for name, module in group.named_modules()
    )
