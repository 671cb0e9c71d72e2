"""What ranks exchange: sums of their tensors, and tensors side by side.

Both are torch operators, so that captured steps have them too. A sum is computed by every rank, in
the order of the ranks and in float32: it has the same bits on all of them and in every run,
whatever else is in the batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Exchange = Callable[[Tensor], Sequence[Tensor]]
"""Gives all ranks a contiguous tensor of equal shape and type, and returns those of all, in the
order of the ranks."""


class Collectives:
    """The collectives of one rank. Every rank must call the same ones in the same order."""

    def __init__(self, rank: int, ranks: int, exchange: Exchange) -> None:
        self.rank, self.ranks, self._exchange = rank, ranks, exchange
        # Operators of its own: those of another model in this process have other ranks.
        name = f"inferno_ranks_{secrets.token_hex(8)}"
        self._library = torch.library.Library(name, "DEF")  # noqa: TOR901  # lives as long as this
        self._library.define("all_reduce_(Tensor(a!) x) -> Tensor(a!)")
        self._library.define("all_gather(Tensor x, int[] widths) -> Tensor")
        self._library.impl("all_reduce_", self._all_reduce, "CPU")
        self._library.impl("all_gather", self._all_gather, "CPU")
        self._operators: Any = getattr(torch.ops, name)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, in the memory of this one."""
        total: Tensor = self._operators.all_reduce_(x.contiguous())
        return total

    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """Return all ranks' tensors side by side: their last dimensions have these sizes."""
        whole: Tensor = self._operators.all_gather(x, widths)
        return whole

    def _all_reduce(self, x: Tensor) -> Tensor:
        first, *others = self._exchange(x)
        total = first.float()
        for other in others:
            total = total + other.float()
        return x.copy_(total)

    def _all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        mine = F.pad(x, (0, max(widths) - x.shape[-1])).contiguous()
        parts = self._exchange(mine)
        return torch.cat([part[..., :n] for part, n in zip(parts, widths, strict=True)], -1)
