"""What ranks exchange: sums of their tensors, and tensors side by side.

Both are torch operators, so that captured steps have them too. A sum is computed by every rank, in
the order of the ranks and in float32: it has the same bits on all of them and in every run,
whatever else is in the batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Exchange = Callable[[Tensor], Sequence[Tensor]]
"""Gives all ranks a contiguous tensor of equal shape and type, and returns those of all, in the
order of the ranks."""


class Operators:
    """One rank's collectives as torch operators (`contracts.Communicator`)."""

    def __init__(
        self,
        sum_: Callable[[Tensor], None],
        gather: Callable[[Tensor, Sequence[int]], Tensor],
    ) -> None:
        """`sum_` sums over the ranks in a contiguous tensor's memory; `gather` is `all_gather`."""
        # Operators of its own: those of another model in this process have other ranks.
        name = f"inferno_ranks_{secrets.token_hex(8)}"
        self._library = torch.library.Library(name, "DEF")  # noqa: TOR901  # lives as long as this
        self._library.define("sum_(Tensor(a!) x) -> ()")
        self._library.define("gather(Tensor x, int[] widths) -> Tensor")
        for device in ("CPU", "CUDA"):
            self._library.impl("sum_", sum_, device)
            self._library.impl("gather", gather, device)
        self._operators: Any = getattr(torch.ops, name)

    @classmethod
    def of(cls, exchange: Exchange) -> Operators:
        """Return those that compute from what all ranks give."""

        return cls(lambda x: add_up(exchange(x), x), partial(side_by_side, exchange))

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._operators.sum_(x)
        return x

    def all_gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        whole: Tensor = self._operators.gather(x, widths)
        return whole


def add_up(parts: Sequence[Tensor], total: Tensor) -> None:
    """Write the sum of parts: in their order, in float32, rounded once."""
    if len(parts) == 2:
        torch.add(parts[0], parts[1], out=total)  # one kernel, which adds in float32
        return
    first, *others = parts
    whole = first.float()
    for other in others:
        whole = whole + other
    total.copy_(whole)


def side_by_side(exchange: Exchange, x: Tensor, widths: Sequence[int]) -> Tensor:
    """Return the tensors of all ranks as `contracts.Communicator.all_gather` does."""
    mine = F.pad(x, (0, max(widths) - x.shape[-1])).contiguous()
    parts = exchange(mine)
    return torch.cat([part[..., :n] for part, n in zip(parts, widths, strict=True)], -1)
