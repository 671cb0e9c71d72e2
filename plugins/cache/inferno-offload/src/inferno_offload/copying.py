"""Copies between the cache's tensors and buffers of one part each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import define, field
from torch import Tensor


@define(eq=False)
class GroupCopies:
    """The pieces of one cache group: tensors of bytes (places, bytes of one), whose bytes of one
    place make a part, one after the other."""

    pieces: Sequence[Tensor]
    _near: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._near = all(piece.device.type == "cpu" for piece in self.pieces)

    def out(self, places: Sequence[int]) -> list[Tensor]:
        """Return the parts at these places, each in memory of its own."""
        if self._near:
            arrays = [piece.numpy() for piece in self.pieces]
            size = sum(array.shape[1] for array in arrays)
            parts = []
            for place in places:
                part = torch.empty(size, dtype=torch.uint8)
                target, at = part.numpy(), 0
                for array in arrays:
                    row = array[place]
                    target[at : at + len(row)] = row
                    at += len(row)
                parts.append(part)
            return parts
        index = torch.tensor(places, device=self.pieces[0].device)
        together = torch.cat([piece.index_select(0, index) for piece in self.pieces], 1).cpu()
        return [row.clone() for row in together]

    def into(self, places: Sequence[int], parts: Sequence[Tensor]) -> None:
        """Copy parts to these places."""
        if self._near:
            arrays = [piece.numpy() for piece in self.pieces]
            for place, part in zip(places, parts, strict=True):
                source, at = part.numpy(), 0
                for array in arrays:
                    size = array.shape[1]
                    array[place] = source[at : at + size]
                    at += size
            return
        device = self.pieces[0].device
        index, together = torch.tensor(places, device=device), torch.stack(list(parts)).to(device)
        for piece, rows in zip(
            self.pieces, together.split([p.shape[1] for p in self.pieces], 1), strict=True
        ):
            piece.index_copy_(0, index, rows.contiguous())
