"""Copies of whole places of the cache: rows of bytes in tensors of one length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from attrs import define, field
from torch import Tensor

from inferno.device.staging import sent


@define(eq=False)
class Places:
    """The places of a cache group: one tensor (places, bytes of one) for each of its layers'
    tensors."""

    pieces: tuple[Tensor, ...]
    _arrays: list[object] | None = field(init=False)
    """The same as NumPy arrays on a CPU: there a copy of a place costs a third of torch's."""

    def __attrs_post_init__(self) -> None:
        near = all(piece.device.type == "cpu" for piece in self.pieces)
        self._arrays = [piece.numpy() for piece in self.pieces] if near else None

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Places:
        """Return the places of contiguous tensors, each (places, *shape of one)."""
        return cls(tuple(tensor.view(torch.uint8).flatten(1) for tensor in tensors))

    def copy(self, pairs: Sequence[tuple[int | None, int]]) -> None:
        """Copy a source to a target in every tensor, or clear the target, in order."""
        if self._arrays is None:
            for group in _apart(pairs):
                self.copy_at_once(group)
            return
        for source, target in pairs:
            for array in self._arrays:
                array[target] = 0 if source is None else array[source]  # type: ignore[index]

    def copy_at_once(self, pairs: Sequence[tuple[int | None, int]]) -> None:
        """The same with three kernels for each tensor, for pairs of which no two have one target,
        and none has the target of one before it as its source."""
        cleared = [target for source, target in pairs if source is None]
        copied = [(source, target) for source, target in pairs if source is not None]
        sources, targets = [source for source, _ in copied], [target for _, target in copied]
        for piece in self.pieces:
            wide = piece.view(torch.int64) if piece.shape[1] % 8 == 0 else piece
            if copied:
                wide[sent(targets, wide.device)] = wide[sent(sources, wide.device)]
            if cleared:
                wide[sent(cleared, wide.device)] = 0


def _apart(
    pairs: Sequence[tuple[int | None, int]],
) -> Iterator[list[tuple[int | None, int]]]:
    """Divide pairs, in order, into lists that can be copied at once."""
    group, written = list[tuple[int | None, int]](), set[int | None]()
    for pair in pairs:
        if not written.isdisjoint(pair):
            yield group
            group, written = [], set()
        group.append(pair)
        written.add(pair[1])
    yield group
