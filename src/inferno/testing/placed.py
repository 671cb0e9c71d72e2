"""Calls on a device, with arguments and results on the CPU: tests of kernels compare there."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import attrs
from torch import Tensor, nn


@attrs.frozen(eq=False)
class Placed:
    """A function, or an object whose methods are called on a device."""

    inner: Any
    device: str

    def __call__(self, *arguments: Any) -> Any:
        return self._back(self.inner(*_moved(arguments, self.device)))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        return Placed(value, self.device) if callable(value) else value

    def _back(self, result: Any) -> Any:
        if isinstance(result, nn.Module):
            return Placed(result, self.device)
        return _moved(result, "cpu")


def _moved(value: Any, device: str) -> Any:
    """Return the value with its tensors on the device, in copies of what has them."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, nn.Module):
        return deepcopy(value).to(device)
    if isinstance(value, tuple | list):
        return type(value)(_moved(each, device) for each in value)
    if attrs.has(type(value)):
        fields = [field.name for field in attrs.fields(type(value)) if field.init]
        return attrs.evolve(value, **{n: _moved(getattr(value, n), device) for n in fields})
    return value
