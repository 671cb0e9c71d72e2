"""Copies of parts whose pieces are in one memory, in several, and of several sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inferno_offload.copying import GroupCopies, strips
from inferno_offload.slots import Slots

PLACES = 6


def pieces_of(sizes: list[int], gap: int, apart: bool) -> list[Tensor]:
    """Pieces in one memory with a gap after each, or each in its own."""
    memory = torch.randint(0, 256, (sum(PLACES * size + gap for size in sizes),), dtype=torch.uint8)
    pieces, at = list[Tensor](), 0
    for size in sizes:
        piece = memory[at : at + PLACES * size].view(PLACES, size)
        pieces.append(piece.clone() if apart else piece)
        at += PLACES * size + gap
    return pieces


def test_pieces_may_be_columns_of_one_tensor() -> None:
    table = torch.randint(0, 256, (PLACES, 20), dtype=torch.uint8)
    before = table.clone()
    copies = GroupCopies([table[:, :6], table[:, 6:12], table[:, 12:]], Slots.of(20, 0, 200))
    assert len(strips(copies.pieces)) == 2
    buffers = copies.out([3, 1])
    assert torch.equal(torch.stack([each.data for each in buffers]), before[[3, 1]])
    copies.into([0, 2], buffers)
    assert torch.equal(table, before[[3, 1, 1, 3, 4, 5]])


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("slots", [0, 4])
@pytest.mark.parametrize(
    ("sizes", "count"),
    [([8] * 4, 1), ([8, 3] * 3, 2), ([8, 8, 3, 8, 8], 5), ([5], 1), ([0, 4], 2)],
)
def test_what_is_copied_out_comes_back(
    sizes: list[int], count: int, slots: int, apart: bool
) -> None:
    pieces = pieces_of(sizes, 16, apart)
    if not apart:
        assert len(strips(pieces)) == count
    nbytes = sum(sizes)
    copies = GroupCopies(pieces, Slots.of(nbytes, 0, slots * nbytes))
    places = [4, 1, 2, 3, 0]
    before = [torch.cat([piece[place] for piece in pieces]) for place in range(PLACES)]
    buffers = copies.out(places)
    for place, buffer in zip(places, buffers, strict=True):
        assert torch.equal(buffer.data, before[place])
    targets = [0, 4, 5, 1, 2]
    copies.into(targets, buffers)
    expected = dict(zip(targets, places, strict=True)) | {3: 3}
    for target, place in expected.items():
        after = torch.cat([piece[target] for piece in pieces])
        assert torch.equal(after, before[place])
