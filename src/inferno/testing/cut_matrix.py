"""Tests of matrices that several ranks share: the parts of a matrix are its rows and columns.

Suffixes: O rows, I columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from inferno.contracts import QuantScheme
from inferno.nn import Cut, Weight
from inferno.weights.sharing import cut_before


class CutMatrixTests:
    """Mixed into `QuantSchemeTests`: what a scheme's `HeldMatrix.unit` says can be cut gives the
    values of the whole matrix, and takes memory for no others; so does what is cut before it is
    loaded (`HeldMatrix.along`)."""

    shapes: ClassVar[Sequence[tuple[int, int]]]

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_cut_matrices_have_the_values_of_the_whole_one(
        self: Any, item: QuantScheme, dtype: str
    ) -> None:
        for rows, columns in self.shapes:
            parts = self.parts(rows, columns, 0)
            if (unit := item.holds(self._stored(parts), dtype).unit) is None:
                return  # the plan refuses to divide it
            weight: Weight = self._load(item, parts, dtype)
            whole_OI = values(weight)
            for axis, size in enumerate((rows, columns)):
                if not unit[axis]:
                    continue  # the plan divides it by rows only
                for cut in _cuts(axis, size, unit[axis]):
                    part = weight.cut(cut)
                    assert part.shape == cut.shape((rows, columns)) and part.layout == weight.layout
                    assert torch.equal(values(part), cut.of(whole_OI))
                    matrix, shape = self._stored(parts), (rows, columns)
                    small, read, was_cut = cut_before(
                        cut, matrix, parts, shape, lambda each: item.holds(each, dtype)
                    )
                    if was_cut:  # of what is stored, no more is read
                        loaded: Weight = item.load(small, read, dtype=dtype)
                        assert torch.equal(values(loaded), values(part))
                        assert loaded.layout == part.layout
                    nbytes = _held(part) - _whole(part, weight)
                    assert nbytes <= _held(weight) * (cut.size / size) + 256


def values(weight: Weight) -> Tensor:
    """Return a matrix dense, (O, I)."""
    return weight.rows(torch.arange(weight.shape[0]))


def _cuts(axis: int, size: int, unit: int) -> list[Cut]:
    """Both halves in whole units, the whole, and two ranges that do not touch."""
    middle = size // unit // 2 * unit
    ranges = [((0, size),), ((0, middle),), ((middle, size),), ((0, unit), (middle, size))]
    return [
        Cut(axis, each) for each in ranges if all(b > a for a, b in each) and each[0][1] <= size
    ]


def _whole(own: Weight, weight: Weight) -> int:
    """Return the bytes of what belongs to all rows, as the order of columns."""
    shapes = {name: tensor.shape for name, tensor in weight.named_buffers()}
    same = (t for name, t in own.named_buffers() if t.shape == shapes[name] != own.shape)
    return sum(tensor.nbytes for tensor in same)


def _held(weight: Weight) -> int:
    return sum(tensor.nbytes for tensor in (*weight.buffers(), *weight.parameters()))
