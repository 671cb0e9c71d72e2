"""Copies between the cache's tensors and buffers of one part each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from inferno_offload.slots import Buffer, Slots, runs


@define(eq=False)
class GroupCopies:
    """The pieces of one cache group: tensors of bytes (places, bytes of one), whose bytes of one
    place make a part, one after the other."""

    pieces: Sequence[Tensor]
    slots: Slots
    """Where the parts' buffers are from."""
    _arrays: list[tuple[Any, slice]] | None = field(init=False)
    """The same as NumPy arrays on a CPU, each with where its bytes are in a part."""

    def __attrs_post_init__(self) -> None:
        self._arrays, at = None, 0
        if all(piece.device.type == "cpu" for piece in self.pieces):
            self._arrays = []
            for piece in self.pieces:
                self._arrays.append((piece.numpy(), slice(at, at + piece.shape[1])))
                at += piece.shape[1]

    def out(self, places: Sequence[int]) -> list[Buffer]:
        """Return the parts at these places, each in a buffer."""
        buffers = [self.slots.take() for _ in places]
        if self._arrays is not None:
            for first, parts in self._together(places, buffers):
                last = first + len(parts)
                for array, span in self._arrays:
                    parts[:, span] = array[first:last]
            return buffers
        index = torch.tensor(places, device=self.pieces[0].device)
        together = torch.cat([piece.index_select(0, index) for piece in self.pieces], 1).cpu()
        for buffer, row in zip(buffers, together, strict=True):
            buffer.data.copy_(row)
        return buffers

    def into(self, places: Sequence[int], buffers: Sequence[Buffer]) -> None:
        """Copy parts to these places."""
        if self._arrays is not None:
            for first, parts in self._together(places, buffers):
                last = first + len(parts)
                for array, span in self._arrays:
                    array[first:last] = parts[:, span]
            return
        device = self.pieces[0].device
        index = torch.tensor(places, device=device)
        together = torch.stack([buffer.data for buffer in buffers]).to(device)
        sizes = [piece.shape[1] for piece in self.pieces]
        for piece, rows in zip(self.pieces, together.split(sizes, 1), strict=True):
            piece.index_copy_(0, index, rows.contiguous())

    def _together(
        self, places: Sequence[int], buffers: Sequence[Buffer]
    ) -> Iterator[tuple[int, Any]]:
        """Return places of neighbours, the first of each, with their parts (parts, bytes)."""
        for start, stop in runs(places, buffers):
            slot = buffers[start].slot
            alone = buffers[start].data[None]
            parts = alone if slot < 0 else self.slots.memory[slot : slot + stop - start]
            yield places[start], parts.numpy()
