"""Public packed layouts, value by value, and weights around others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferno.contracts import IntLayout
from inferno.errors import CheckpointError
from inferno.nn import Dense, IntGroups, Permuted, Weight, packed_nibbles, stacked_inside
from inferno.nn import unpacked_words as unpacked
from inferno.testing.kernels import random_ints


def values(weight: IntGroups) -> np.ndarray:
    """What the tensors say, by the definition in the reference."""
    matrix = np.zeros(weight.shape)
    for o in range(weight.shape[0]):
        for i in range(weight.shape[1]):
            byte = int(weight.data[o, i * weight.bits // 8])
            code = byte if weight.bits == 8 else byte >> 4 if i % 2 else byte & 15
            zero = float(1 << weight.bits - 1)
            if weight.zeros is not None:
                zero = float(weight.zeros[o, i // weight.group])
            matrix[o, i] = float(weight.scales[o, i // weight.group]) * (code - zero)
    return matrix


LAYOUTS = [
    IntLayout(bits=bits, group=group, symmetric=symmetric)
    for bits in (4, 8)
    for group in (16, 32, 128)
    for symmetric in (False, True)
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_values_are_scales_times_codes_less_zero_points(layout: IntLayout) -> None:
    weight = random_ints(layout, 3, 256, torch.float32)
    assert weight.layout == layout.name and weight.shape == (3, 256)
    wanted_OI = torch.from_numpy(values(weight)).float()
    assert torch.equal(weight.rows(torch.arange(3)), wanted_OI)
    x_TI = torch.randn(4, 256)
    wanted_TO = x_TI.double() @ wanted_OI.double().T
    torch.testing.assert_close(weight.matmul(x_TI).double(), wanted_TO, rtol=1e-4, atol=1e-4)
    size = sum(buffer.nbytes for buffer in weight.buffers())
    assert size == layout.nbytes(3, 256)


@pytest.mark.parametrize(
    ("bits", "group", "name"),
    [
        (4, 128, "int4_g128"),
        (4, 64, "int4_g64"),
        (3, 4096, "int4_g128"),
        (2, 96, "int4_g32"),
        (8, 48, "int8_g48"),
        (4, 8, "int4_g8"),
    ],
)
def test_groups_are_split_to_what_kernels_have(bits: int, group: int, name: str) -> None:
    assert IntLayout.fitting(bits, group).name == name


def test_scales_are_repeated_for_smaller_groups() -> None:
    data_OB = torch.randint(0, 256, (2, 96), dtype=torch.uint8)
    scales_OG, zeros_OG = torch.rand(2, 1), torch.full((2, 1), 3.5)
    layout = IntLayout.fitting(4, 192)
    weight = IntGroups.of(
        data_OB, scales_OG, zeros_OG, layout=layout, group=192, dtype=torch.float32
    )
    assert weight.group == 64 and torch.equal(weight.scales, scales_OG.half().expand(2, 3))
    with pytest.raises(CheckpointError, match="scale"):
        IntGroups.of(
            data_OB, scales_OG * 1e6, zeros_OG, layout=layout, group=192, dtype=torch.float32
        )


@settings(max_examples=50, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4, 8]),
    rows=st.integers(1, 3),
    words=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_codes_of_words_follow_each_other_from_the_lowest_bit(
    bits: int, rows: int, words: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    stored = np.zeros((rows, words * (3 if bits == 3 else 1)), np.int32)
    count = stored.shape[1] * 32 // bits
    codes = rng.integers(0, 1 << bits, (rows, count))
    for row, entries in enumerate(codes.tolist()):
        stream = sum(code << bits * i for i, code in enumerate(entries))
        stored[row] = np.frombuffer(stream.to_bytes(stored.shape[1] * 4, "little"), np.int32)
    assert np.array_equal(unpacked(torch.from_numpy(stored), bits).numpy(), codes)
    if bits <= 4 and count % 2 == 0:
        pairs = packed_nibbles(torch.from_numpy(codes.astype(np.uint8)))
        assert torch.equal(pairs, torch.from_numpy(codes[:, ::2] + 16 * codes[:, 1::2]).byte())


def permuted(seed: int, order_I: Tensor) -> tuple[Permuted, Tensor]:
    """A matrix whose columns are stored in another order, and its values."""
    weight_OI = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
    return Permuted(Dense(weight_OI[:, order_I]), order_I), weight_OI


def test_columns_in_another_order_give_the_same_products_and_rows() -> None:
    order_I = torch.randperm(16)
    weight, weight_OI = permuted(0, order_I)
    assert torch.equal(weight.rows(torch.tensor([3, 1])), weight_OI[[3, 1]])
    x_TI, bias_O = torch.randn(5, 16), torch.randn(8)
    torch.testing.assert_close(weight.matmul(x_TI, bias_O), x_TI @ weight_OI.T + bias_O)
    starts_E1 = torch.tensor([0, 2, 5], dtype=torch.int32)
    wanted = torch.cat([x_TI[:2] @ weight_OI[:4].T, x_TI[2:] @ weight_OI[4:].T])
    torch.testing.assert_close(weight.grouped(x_TI, starts_E1), wanted)


def test_wrappers_that_join_are_one_around_a_stack_and_others_are_not() -> None:
    order_I, others_I = torch.arange(16).flip(0), torch.randperm(16)
    stacked = list[Sequence[Weight]]()

    def stack(inner: Sequence[Weight]) -> Weight | None:
        stacked.append(inner)
        return inner[0].concatenate(inner[1:])

    (one, one_OI), (two, two_OI) = permuted(0, order_I), permuted(1, order_I)
    both = stacked_inside([one, two], stack)
    assert isinstance(both, Permuted) and stacked == [[one.inner, two.inner]]
    assert torch.equal(both.rows(torch.arange(16)), torch.cat([one_OI, two_OI]))
    assert stacked_inside([one, permuted(1, others_I)[0]], stack) is None
    assert stacked_inside([one, Dense(two_OI)], stack) is None
    assert stacked_inside([Dense(two_OI), one], stack) is None
    assert stacked_inside([one, two], lambda inner: None) is None
