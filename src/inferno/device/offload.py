"""Tensors of a device whose values wait in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import torch
from attrs import frozen
from torch import Tensor, UntypedStorage, nn


@frozen(eq=False)
class Offloaded:
    """Memory that was given back, and the values it had. Tensors and their views stay what they
    are, and may not be used meanwhile; captured steps are of no use afterwards: their addresses are
    others' then."""

    values: tuple[tuple[UntypedStorage, Tensor], ...]
    """Each device's storage, with a copy of its bytes."""

    @classmethod
    def of(cls, modules: Iterable[nn.Module], kind: str) -> Self:
        """Copy all tensors of modules that are on a device of this kind to the host, and free the
        memory that they have there. Others, such as experts that the host computes, stay."""
        storages = dict[int, UntypedStorage]()
        for tensor in (t for module in modules for t in tensors_of(module)):
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.device.type == kind:
                storages[storage.data_ptr()] = storage
        values = []
        for storage in storages.values():
            on_device = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            host = torch.empty(storage.nbytes(), dtype=torch.uint8)
            host.copy_(on_device)
            del on_device
            storage.resize_(0)
            values.append((storage, host))
        empty_caches(kind)
        return cls(tuple(values))

    @property
    def nbytes(self) -> int:
        return sum(host.nbytes for _, host in self.values)

    def restore(self) -> None:
        """Give the tensors memory and their values again."""
        for storage, host in self.values:
            storage.resize_(host.nbytes)
            torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).copy_(host)


def empty_caches(kind: str) -> None:
    """Give back what torch's allocators keep for later: a device's memory, and the page-locked
    memory of its host."""
    if kind == "cpu":
        return
    torch.get_device_module(kind).empty_cache()
    if (empty := getattr(torch.accelerator, "empty_host_cache", None)) is not None:  # newer torch
        empty()


def tensors_of(root: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors of modules: parameters, buffers and those of other attributes."""
    for module in root.modules():
        yield from own_tensors(module)


def own_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield those of a module, without its children's."""
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    for value in vars(module).values():
        if isinstance(value, Tensor):
            yield value
