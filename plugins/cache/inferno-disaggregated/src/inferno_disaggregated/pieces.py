"""Copies between the cache's tensors and arrays of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]


@define(eq=False)
class GroupCopies:
    """The pieces of one cache group: tensors of bytes (places, bytes of one), whose bytes of one
    place make a part, one after the other. There are none if other pipeline stages have them."""

    pieces: Sequence[Tensor]
    _arrays: list[Bytes] = field(init=False)
    """The same on a CPU."""

    def __attrs_post_init__(self) -> None:
        near = all(piece.device.type == "cpu" for piece in self.pieces)
        self._arrays = [piece.numpy() for piece in self.pieces] if near else []

    def out(self, places: Sequence[int], parts: Bytes) -> None:
        """Copy places to the rows of `parts`."""
        at, index = 0, _index(places)
        for array in self._arrays:
            parts[:, at : at + array.shape[1]] = array[index]
            at += array.shape[1]
        if self.pieces and not self._arrays:
            rows = torch.tensor(places, device=self.pieces[0].device)
            together = torch.cat([piece.index_select(0, rows) for piece in self.pieces], 1)
            parts[:] = together.cpu().numpy()

    def into(self, places: Sequence[int], parts: Bytes, rows: Sequence[int]) -> None:
        """Copy rows of `parts` to places."""
        at, index, source = 0, _index(places), _index(rows)
        for array in self._arrays:
            array[index] = parts[source, at : at + array.shape[1]]
            at += array.shape[1]
        if self.pieces and not self._arrays:
            device = self.pieces[0].device
            targets = torch.tensor(places, device=device)
            together = torch.from_numpy(np.ascontiguousarray(parts[source])).to(device)
            for piece in self.pieces:
                width = piece.shape[1]
                piece.index_copy_(0, targets, together[:, at : at + width].contiguous())
                at += width


def _index(numbers: Sequence[int]) -> Any:
    """Return numbers as an index: a slice where they follow each other, for one copy."""
    first, count = numbers[0], len(numbers)
    if all(number == first + i for i, number in enumerate(numbers)):
        return slice(first, first + count)
    return np.asarray(numbers)
