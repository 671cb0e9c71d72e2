"""Copies between the cache's tensors and buffers of one part each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from attrs import define, field, frozen
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from inferno_offload.slots import Buffer, Slots, runs

Array = Any
"""A NumPy array of bytes."""


@frozen(eq=False)
class Strip:
    """Pieces of one size at equal distances, in memory and in a part: all of them of a place are
    copied by one assignment, which for small pieces is most of the time."""

    array: Array
    """(places, pieces, bytes)"""
    first: int
    """Where the first one is in a part."""
    step: int

    def of(self, parts: Array) -> Array:
        """Return a view of the same pieces in parts (parts, bytes)."""
        _, count, size = self.array.shape
        return as_strided(
            parts[:, self.first :], (len(parts), count, size), (parts.strides[0], self.step, 1)
        )


def strips(pieces: Sequence[Tensor]) -> list[Strip]:
    """Divide pieces on a CPU into as few strips as their addresses allow."""
    starts = [0, *accumulate(piece.shape[1] for piece in pieces)]
    result = list[Strip]()
    for shape, strides in dict.fromkeys((piece.shape, piece.stride()) for piece in pieces):
        same = [
            i for i, piece in enumerate(pieces) if (piece.shape, piece.stride()) == (shape, strides)
        ]
        first = pieces[same[0]]
        offsets = [pieces[i].data_ptr() - first.data_ptr() for i in same]
        into = [starts[i] - starts[same[0]] for i in same]
        pitch, step = (offsets[1], into[1]) if len(same) > 1 else (0, 0)
        memory = {pieces[i].untyped_storage().data_ptr() for i in same}
        count = range(len(same))
        equal = offsets == [k * pitch for k in count] and into == [k * step for k in count]
        if len(memory) == 1 and equal and pitch >= 0:
            strided = first.as_strided(
                (shape[0], len(same), shape[1]), (strides[0], pitch, strides[1])
            )
            result.append(Strip(strided.numpy(), starts[same[0]], step))
        else:
            result += [Strip(pieces[i].numpy()[:, None], starts[i], 0) for i in same]
    return result


@define(eq=False)
class GroupCopies:
    """The pieces of one cache group: tensors of bytes (places, bytes of one), whose bytes of one
    place make a part, one after the other."""

    pieces: Sequence[Tensor]
    slots: Slots
    """Where the parts' buffers are from."""
    _strips: list[Strip] | None = field(init=False)
    """The same on a CPU."""
    _in_slots: list[Array] = field(factory=list, init=False)
    """For each strip, its view of all slots."""

    def __attrs_post_init__(self) -> None:
        near = all(piece.device.type == "cpu" for piece in self.pieces)
        self._strips = strips(self.pieces) if near else None
        if self._strips and len(self.slots.memory):
            memory = self.slots.memory.numpy()
            self._in_slots = [strip.of(memory) for strip in self._strips]

    def out(self, places: Sequence[int]) -> list[Buffer]:
        """Return the parts at these places, each in a buffer."""
        buffers = [self.slots.take() for _ in places]
        if self._strips is not None:
            for cached, part in self._pairs(places, buffers):
                part[...] = cached
            return buffers
        index = torch.tensor(places, device=self.pieces[0].device)
        together = torch.cat([piece.index_select(0, index) for piece in self.pieces], 1).cpu()
        for buffer, row in zip(buffers, together, strict=True):
            buffer.data.copy_(row)
        return buffers

    def into(self, places: Sequence[int], buffers: Sequence[Buffer]) -> None:
        """Copy parts to these places."""
        if self._strips is not None:
            for cached, part in self._pairs(places, buffers):
                cached[...] = part
            return
        device = self.pieces[0].device
        index = torch.tensor(places, device=device)
        together = torch.stack([buffer.data for buffer in buffers]).to(device)
        sizes = [piece.shape[1] for piece in self.pieces]
        for piece, rows in zip(self.pieces, together.split(sizes, 1), strict=True):
            piece.index_copy_(0, index, rows.contiguous())

    def _pairs(
        self, places: Sequence[int], buffers: Sequence[Buffer]
    ) -> Iterator[tuple[Array, Array]]:
        """Return views of the cache and of buffers that have the same bytes: of neighbours at
        once."""
        assert self._strips is not None
        for start, stop in runs(places, buffers):
            slot, place, count = buffers[start].slot, places[start], stop - start
            for i, strip in enumerate(self._strips):
                if slot < 0:
                    part = strip.of(buffers[start].data.numpy()[None])
                else:
                    part = self._in_slots[i][slot : slot + count]
                yield strip.array[place : place + count], part
