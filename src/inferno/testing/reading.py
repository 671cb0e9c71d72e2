"""What is read of a checkpoint."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import frozen
from torch import Tensor

from inferno.contracts import Checkpoint


@frozen(eq=False)
class Reading:
    """A checkpoint that counts the bytes that are read of it."""

    inner: Checkpoint
    read_bytes: Counter[str]

    def read(self, name: str) -> Tensor:
        tensor = self.inner.read(name)
        self.read_bytes[name] = tensor.nbytes
        return tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
