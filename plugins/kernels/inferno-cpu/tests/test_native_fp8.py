"""Matrices of 8-bit floats against float64 products of their exact values, at every level.

Suffixes: O rows (output features), I columns (input features), T tokens, E stacked matrices, N rows
of x for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dense import assert_product, assert_recorded, assert_saved, random
from test_grouped import starts
from torch import Tensor

from inferno.contracts import LINEAR, Device, KernelNeed
from inferno.errors import CheckpointError
from inferno.nn import Fp8Blocks
from inferno_cpu import _native, layouts, refuses
from inferno_cpu.dense import Panels
from inferno_cpu.dtypes import DTYPES
from inferno_cpu.linear import stack

pytestmark = pytest.mark.usefixtures("isa")
SHAPES = [(1, 1), (16, 2), (17, 33), (48, 64), (100, 131), (130, 256), (5, 515), (64, 640)]
BLOCKS = [(1, 0), (128, 128), (16, 128), (48, 256)]
"""0 columns: the row is a block."""
TOKENS = [1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 33, 64, 100]


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = _native.threads()
    _native.set_threads(request.param)
    yield request.param
    _native.set_threads(before)


def matrix(
    rows: int, columns: int, block: tuple[int, int], dtype: torch.dtype, seed: int = 0
) -> Fp8Blocks:
    """Any codes but NaN, the subnormal ones among them more often than by chance."""
    generator = torch.Generator().manual_seed(seed)
    block = block[0], block[1] or columns
    data_OI = torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=generator)
    small_OI = torch.rand(rows, columns, generator=generator) < 0.3
    data_OI[small_OI] &= 0x87
    data_OI[data_OI & 0x7F == 0x7F] ^= 1
    grid = -(-rows // block[0]), -(-columns // block[1])
    scales = torch.rand(grid, generator=generator) / 64
    return Fp8Blocks(data_OI.view(torch.float8_e4m3fn), scales, block, dtype)


def exact(weight: Fp8Blocks) -> Tensor:
    """Its values in float64, (O, I)."""
    scales = weight.scales.double()
    for axis in (0, 1):
        scales = scales.repeat_interleave(weight.block[axis], axis)
    return weight.data.double() * scales[: weight.shape[0], : weight.shape[1]]


def packed(*weights: Fp8Blocks) -> Panels:
    built = stack(*weights)
    assert isinstance(built, Panels)
    return built


@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_rows_are_the_values(block: tuple[int, int], type_: torch.dtype) -> None:
    for shape in SHAPES:
        weight, ids = matrix(*shape, block, type_), torch.arange(shape[0]).flip(0)
        assert torch.equal(packed(weight).rows(ids), weight.rows(ids))


def test_every_code_is_its_value() -> None:
    """By products with one column at a time, so that an instruction for products is tested too."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes & 0x7F != 0x7F]
    data_OI = torch.cat([codes, codes[:2]]).view(16, 16).view(torch.float8_e4m3fn)
    weight = Fp8Blocks(data_OI, torch.full((16, 1), 0.5), (1, 16), torch.bfloat16)
    for tokens in (16, 32):
        x_TI = torch.eye(16, dtype=torch.bfloat16).repeat(tokens // 16, 1)
        y_TO = packed(weight).matmul(x_TI)
        assert torch.equal(y_TO[-16:].T.float(), weight.data.float() / 2)
        assert torch.equal(
            packed(weight).matmul(x_TI[:1])[0].float(), weight.data[:, 0].float() / 2
        )


@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_product(block: tuple[int, int], type_: torch.dtype) -> None:
    for shape in SHAPES:
        weight = matrix(*shape, block, type_)
        panels = packed(weight)
        for tokens in TOKENS if shape == (100, 131) else (1, 5, 17):
            x_TI = random(tokens, shape[1], dtype=type_, seed=tokens)
            bias_O = random(shape[0], dtype=torch.float32, seed=7) if tokens % 2 else None
            assert_product(panels.matmul(x_TI, bias_O), x_TI, exact(weight), bias_O)


def test_product_of_many_tokens() -> None:
    """More than are packed at a time."""
    weight, x_TI = (
        matrix(330, 258, (128, 128), torch.bfloat16),
        random(1030, 258, dtype=torch.bfloat16),
    )
    assert_product(packed(weight).matmul(x_TI), x_TI, exact(weight))


@pytest.mark.parametrize("columns", [200, 256, 384])
@pytest.mark.parametrize("type_", [torch.bfloat16, torch.float32])
def test_a_token_has_the_same_product_in_any_company(columns: int, type_: torch.dtype) -> None:
    panels = packed(matrix(64, columns, (128, 128), type_))
    x_TI = random(40, columns, dtype=type_)
    y_TO = panels.matmul(x_TI)
    for count in (1, 3, 6):
        assert torch.equal(panels.matmul(x_TI[5 : 5 + count]), y_TO[5 : 5 + count])


@pytest.mark.parametrize("block", [(1, 0), (128, 128)])
@pytest.mark.parametrize("rows", [(16, 32, 48), (128, 256, 100)])
def test_stacked_matrices_keep_their_scales(rows: tuple[int, ...], block: tuple[int, int]) -> None:
    weights = [matrix(count, 200, block, torch.bfloat16, seed=count) for count in rows]
    assert torch.equal(
        packed(*weights).rows(torch.arange(sum(rows))),
        torch.cat([w.rows(torch.arange(w.shape[0])) for w in weights]),
    )


def test_rows_of_scales_are_stacked_though_panels_are_shared() -> None:
    weights = [matrix(count, 200, (1, 0), torch.bfloat16, seed=count) for count in (5, 20, 33)]
    rows = torch.cat([w.rows(torch.arange(w.shape[0])) for w in weights])
    assert torch.equal(packed(*weights).rows(torch.arange(58)), rows)


@pytest.mark.parametrize("block", [(1, 0), (16, 128)])
@pytest.mark.parametrize("counts", [[1] * 8, [0, 5, 0], [3, 17, 0, 9, 8, 16, 1], [600, 1, 511]])
def test_grouped(counts: list[int], block: tuple[int, int]) -> None:
    rows = 32 if block[1] else 20  # rows of which neighbours share panels
    weights = [matrix(rows, 160, block, torch.bfloat16, seed=e) for e in range(len(counts))]
    x_NI = random(sum(counts), 160, dtype=torch.bfloat16)
    biases = [random(rows, dtype=torch.bfloat16, seed=e) for e in range(len(counts))]
    y_NO = packed(*weights).grouped(x_NI, starts(counts), torch.cat(biases))
    for e, (x_TI, y_TO) in enumerate(zip(x_NI.split(counts), y_NO.split(counts), strict=True)):
        assert_product(y_TO, x_TI, exact(weights[e]), biases[e])


@pytest.mark.parametrize("type_", DTYPES)
def test_argmax_is_that_of_the_product(type_: torch.dtype) -> None:
    panels = packed(matrix(1000, 200, (1, 0), type_))
    for tokens in (1, 3, 16, 100):
        x_TI = random(tokens, 200, dtype=type_, seed=tokens)
        assert torch.equal(panels.argmax(x_TI), panels.matmul_float32(x_TI).argmax(-1))


def test_what_is_not_finite_stays_within_its_row() -> None:
    panels, x_TI = (
        packed(matrix(40, 200, (128, 128), torch.bfloat16)),
        random(20, 200, dtype=torch.bfloat16),
    )
    for tokens in (2, 20):
        clean_TO = panels.matmul(x_TI[:tokens])
        bad_TI = x_TI[:tokens].clone()
        bad_TI[1, 7] = float("nan")
        y_TO = panels.matmul(bad_TI)
        assert y_TO[1].isnan().all() and torch.equal(y_TO[0], clean_TO[0])


def test_a_value_that_is_not_a_number_is_an_error() -> None:
    weight = matrix(40, 200, (1, 0), torch.bfloat16)
    for code in (0x7F, 0xFF):
        weight.data.view(torch.uint8)[33, 199] = code
        with pytest.raises(CheckpointError, match="contains NaN"):
            stack(weight)


def test_a_byte_a_value() -> None:
    for block in ((1, 0), (128, 128)):
        panels = packed(matrix(1024, 1024, block, torch.bfloat16))
        assert panels.nbytes <= 1.005 * 1024 * 1024


@pytest.mark.parametrize("block", [(1, 0), (128, 128)])
def test_panels_are_saved_and_loaded(block: tuple[int, int]) -> None:
    assert_saved(packed(matrix(40, 300, block, torch.bfloat16)))


def test_a_recorded_product_is_repeated() -> None:
    assert_recorded(packed(matrix(40, 200, (128, 128), torch.bfloat16)))


@pytest.mark.parametrize("block", [(100, 128), (8, 128), (128, 64), (128, 200)])
def test_blocks_that_are_not_whole_panels_are_left_to_torch(block: tuple[int, int]) -> None:
    weight = matrix(300, 640, block, torch.bfloat16)
    need = KernelNeed(
        op=LINEAR, dtype="bfloat16", device=Device("cpu"), layout=weight.layout, shape=weight.shape
    )
    assert f"stored as {weight.layout}" in str(refuses(need))
    assert layouts.refuses(weight.layout, "bfloat16", weight.shape)
    assert stack(weight) is None


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 300),
    tokens=st.integers(1, 40),
    block=st.sampled_from(BLOCKS),
    type_=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
@settings(deadline=None, derandomize=True, database=None, max_examples=60)
def test_any_size(
    rows: int, columns: int, tokens: int, block: tuple[int, int], type_: torch.dtype, seed: int
) -> None:
    weight = matrix(rows, columns, block, type_, seed)
    x_TI = random(tokens, columns, dtype=type_, seed=seed + 1)
    assert_product(packed(weight).matmul(x_TI), x_TI, exact(weight))
