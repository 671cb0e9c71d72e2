"""What a rank keeps of a tensor."""

from __future__ import annotations

import pytest
import torch

from inferno.nn import Cut


def test_one_range_is_a_view_so_that_no_other_page_of_a_file_is_read() -> None:
    whole = torch.arange(64).view(8, 8)
    for cut in (Cut(0, ((2, 5),)), Cut(1, ((2, 5),))):
        part = cut.of(whole)
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        assert tuple(part.shape) == cut.shape((8, 8))
    assert torch.equal(Cut(0, ((2, 5),)).of(whole), whole[2:5])


def test_several_ranges_come_one_after_the_other() -> None:
    whole = torch.arange(64).view(8, 8)
    cut = Cut(0, ((1, 3), (6, 8)))
    assert torch.equal(cut.of(whole), whole[[1, 2, 6, 7]]) and cut.size == 4


def test_packed_columns_are_cut_by_their_blocks() -> None:
    """Blocks of 32 columns in 18 bytes; the last one may be cut off."""
    packed = torch.arange(3 * 18).view(1, -1)
    assert torch.equal(Cut(1, ((32, 64),)).of(packed, 32, 18), packed[:, 18:36])
    assert torch.equal(Cut(1, ((64, 90),)).of(packed, 32, 18), packed[:, 36:])
    for ranges in (((16, 64),), ((0, 48),)):
        with pytest.raises(AssertionError, match="a block would be cut"):
            Cut(1, ranges).of(packed, 32, 18)


def test_nothing_may_be_kept() -> None:
    assert Cut(0, ((0, 0),)).of(torch.arange(4)).shape == (0,)
