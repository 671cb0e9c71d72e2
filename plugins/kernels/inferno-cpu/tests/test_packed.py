"""Packed matrices against float64 products of their dequantized rows, for every layout and
instruction set.

Suffixes: O rows, I columns, B bytes of a row, G groups of 32 columns, T tokens.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
from attrs import define
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from inferno.errors import InfernoError
from inferno_cpu import _native
from inferno_cpu.layouts import LAYOUTS, nbytes, refuses
from inferno_cpu.packed import PackedPanels, pack

GGML = {
    name: GGMLQuantizationType[re.sub("k$", "K", name.upper())]
    for name in LAYOUTS
    if not name.startswith("int")
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROWS = [1, 15, 16, 17, 100]
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 33, 64, 100]


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(1)


class Matrix(NamedTuple):
    panels: PackedPanels
    w_OI: np.ndarray
    """The exact values, float32."""
    steps_OG: np.ndarray
    """For each 32 columns, the size of scale * (greatest code) and of the minimum: what rounding
    errors are measured by."""


@define
class Blocks:
    layout: str
    data: Tensor
    shape: tuple[int, int]


def scale_bytes(layout: str) -> list[int]:
    """Offsets of the float16 scales in a block."""
    return {
        "q8_0": [0],
        "q4_0": [0],
        "q4_1": [0, 2],
        "q5_0": [0],
        "q5_1": [0, 2],
        "q2_k": [80, 82],
        "q3_k": [108],
        "q4_k": [0, 2],
        "q5_k": [0, 2],
        "q6_k": [208],
        "iq4_nl": [0],
        "mxfp4": [],
    }[layout]


def random_blocks(
    layout: str, rows: int, columns: int, rng: np.random.Generator, scales: np.ndarray
) -> np.ndarray:
    """Random bytes, with float16 scales taken from `scales`."""
    kind = LAYOUTS[layout]
    blocks = rng.integers(0, 256, (rows, columns // kind.block, kind.block_bytes), dtype=np.uint8)
    for at in scale_bytes(layout):
        blocks[..., at : at + 2] = (
            rng.choice(scales, blocks.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
        )
    if layout == "mxfp4":
        exponents = [118, 120, 121] if scales is ORDINARY else [0, 1, 2, 3, 90, 127, 142]
        blocks[..., 0] = rng.choice(exponents, blocks.shape[:2])
    return blocks.reshape(rows, -1)


ORDINARY = np.array([0.01, -0.02, 0.005, 0.003])
EXTREME = np.array([65504, -65504, 6e-8, -6e-8, 6.1e-5, 0.0, -0.0, 1.0, 3e-5])


def matrix(
    layout: str,
    rows: int,
    columns: int,
    seed: int = 0,
    scales: np.ndarray = ORDINARY,
    dtype: torch.dtype = torch.float32,
) -> Matrix:
    rng = np.random.default_rng(seed)
    if layout.startswith("int"):
        return ints(layout, rows, columns, rng, scales, dtype)
    data = random_blocks(layout, rows, columns, rng, scales)
    w_OI = dequantize(data, GGML[layout])
    panels = PackedPanels.of(Blocks(layout, torch.from_numpy(data), (rows, columns)), dtype=dtype)
    # The greatest scale * code and minimum that a block of these bytes can have are within this of
    # its greatest value.
    steps = abs(w_OI.astype(np.float64)).reshape(rows, -1, 32).max(2) * 64
    return Matrix(panels, w_OI, steps)


def ints(
    layout: str,
    rows: int,
    columns: int,
    rng: np.random.Generator,
    scales: np.ndarray,
    dtype: torch.dtype,
) -> Matrix:
    """Integers in groups, some zero points of which are no integers."""
    group, four = LAYOUTS[layout].block, layout.startswith("int4")
    groups, most = columns // group, 15 if four else 255
    data = rng.integers(0, 256, (rows, columns // 2 if four else columns), dtype=np.uint8)
    codes = np.stack([data & 15, data >> 4], -1) if four else data
    codes = codes.reshape(rows, groups, group).astype(np.float32)
    scale = rng.choice(scales, (rows, groups)).astype(np.float16)
    zero = rng.integers(0, most + 2, (rows, groups)).astype(np.float16)
    zero[rng.random(zero.shape) < 0.2] = 7.5
    if "_sym_" in layout:
        zero[:] = 128
    # Two exact products: the difference is exact where the zero is whole.
    factor, zeros = (grid.astype(np.float32)[..., None] for grid in (scale, zero))
    w_OI = factor * (codes - zeros) if "_sym_" in layout else factor * codes - factor * zeros
    steps = np.repeat(abs(scale.astype(np.float64)) * (most + zero), group // 32, 1)
    grids = [torch.from_numpy(scale), torch.from_numpy(zero)][: 1 if "_sym_" in layout else 2]
    packed = pack(layout, (rows, columns), torch.from_numpy(data), *grids, dtype=dtype)
    panels = PackedPanels(layout, (rows, columns), dtype, packed)
    return Matrix(panels, w_OI.reshape(rows, columns), steps)


def rounded(m: Matrix, x_TI: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x in groups of 32 as int8 and their scales: what the kernel should multiply. The scales are
    of larger groups for symmetric integers."""
    layout = m.panels.panel_layout
    span = LAYOUTS[layout].block // 32 if "_sym_" in layout else 1
    x_TGi = x_TI.astype(np.float32).reshape(len(x_TI), -1, 32)
    greatest_TG = abs(x_TGi).max(2).reshape(len(x_TI), -1, span).max(2).repeat(span, 1)
    scale_TG = (greatest_TG / np.float32(127)).astype(np.float64)
    inverse_TG = np.float32(127) / np.where(greatest_TG == 0, 1, greatest_TG)
    return np.rint(x_TGi * inverse_TG[..., None]).astype(np.float64), scale_TG


def product(m: Matrix, x_TI: np.ndarray) -> np.ndarray:
    q_TGi, scale_TG = rounded(m, x_TI)
    exact_TO: np.ndarray = (q_TGi * scale_TG[..., None]).reshape(x_TI.shape) @ m.w_OI.T.astype(
        np.float64
    )
    return exact_TO


def tolerance(m: Matrix, x_TI: np.ndarray) -> np.ndarray:
    """Of a sum over G groups in float32: each term and each partial sum is rounded a few times,
    relative to the greatest that a group's sums of products and of minimums can be. (G + 4) * 2^-24
    of their total, the textbook bound."""
    q_TGi, scale_TG = rounded(m, x_TI)
    size_TO = (abs(q_TGi).sum(2) * scale_TG) @ m.steps_OG.T
    bound_TO: np.ndarray = (scale_TG.shape[1] + 4) * 2.0**-24 * size_TO + 1e-30
    return bound_TO


def activations(tokens: int, columns: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((tokens, columns)) * np.exp(rng.standard_normal((tokens, columns)))
    ).astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_is_the_product_with_x_rounded_to_int8(layout: str, blocks: int) -> None:
    columns = LAYOUTS[layout].block * blocks
    for rows in ROWS:
        m = matrix(layout, rows, columns, seed=rows)
        for tokens in TOKENS if rows in (17, 100) else [1, 2, 5, 17]:
            x_TI = activations(tokens, columns, tokens)
            y_TO = m.panels.matmul(torch.from_numpy(x_TI)).numpy()
            assert (abs(y_TO - product(m, x_TI)) <= tolerance(m, x_TI)).all(), (rows, tokens)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_row(layout: str) -> None:
    m = matrix(layout, 33, 3072)
    for tokens in (1, 4, 19):
        x_TI = activations(tokens, 3072)
        assert (
            abs(m.panels.matmul(torch.from_numpy(x_TI)).numpy() - product(m, x_TI))
            <= tolerance(m, x_TI)
        ).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_extreme_scales(layout: str) -> None:
    m = matrix(layout, 100, 512, scales=EXTREME)
    for tokens in (1, 3, 4, 21):
        x_TI = activations(tokens, 512)
        x_TI[0, :32] = 0
        assert (
            abs(m.panels.matmul(torch.from_numpy(x_TI)).numpy() - product(m, x_TI))
            <= tolerance(m, x_TI)
        ).all()


@pytest.mark.parametrize("code", [0, 127, 128, 129, 255])
def test_the_greatest_codes_do_not_saturate(code: int) -> None:
    """Every byte of the codes the same, every activation the greatest: q8_0 with -128 among them,
    nibbles of 15."""
    for layout, kind in LAYOUTS.items():
        if layout not in GGML:
            continue
        blocks = np.full((16, 1, kind.block_bytes), code, np.uint8)
        for at in scale_bytes(layout):
            blocks[..., at : at + 2] = np.full((16, 1, 1), 0.5, np.float16).view(np.uint8)
        if layout == "mxfp4":
            blocks[..., 0] = 127
        data = blocks.reshape(16, -1)
        panels = PackedPanels.of(
            Blocks(layout, torch.from_numpy(data), (16, kind.block)), dtype=torch.float32
        )
        for tokens in (1, 2, 4, 9, 20):
            for sign in (1.0, -1.0):
                x_TI = np.full((tokens, kind.block), sign, np.float32)
                expected = (
                    x_TI.astype(np.float64) @ dequantize(data, GGML[layout]).astype(np.float64).T
                )
                np.testing.assert_allclose(
                    panels.matmul(torch.from_numpy(x_TI)).numpy(), expected, rtol=1e-5, atol=1e-3
                )


@pytest.mark.parametrize("code", [0, 127, 128, 255])
def test_the_greatest_integers_do_not_saturate(code: int) -> None:
    for layout in ("int8_g128", "int8_sym_g128"):
        data = torch.full((16, 128), code, dtype=torch.uint8)
        grids = [torch.full((16, 1), value).half() for value in (0.5, 128.0)]
        grids = grids[: 1 if "_sym_" in layout else 2]
        panels = PackedPanels(
            layout,
            (16, 128),
            torch.float32,
            pack(layout, (16, 128), data, *grids, dtype=torch.float32),
        )
        for tokens in (1, 2, 4, 9, 20):
            for sign in (1.0, -1.0):
                y_TO = panels.matmul(torch.full((tokens, 128), sign))
                expected = torch.full((tokens, 16), sign * 128 * 0.5 * (code - 128))
                torch.testing.assert_close(y_TO, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_types_of_activations(layout: str, dtype: torch.dtype) -> None:
    m = matrix(layout, 37, 256, dtype=dtype)
    for tokens in (1, 4, 18):
        x_TI = torch.from_numpy(activations(tokens, 256)).to(dtype)
        bias_O = torch.linspace(-1, 1, 37).to(dtype)
        exact = product(m, x_TI.float().numpy())
        for bias, expected in ((None, exact), (bias_O, exact + bias_O.double().numpy())):
            y_TO = m.panels.matmul(x_TI, bias)
            assert y_TO.dtype == dtype and y_TO.shape == (tokens, 37)
            error = abs(y_TO.double().numpy() - expected)
            unit = torch.finfo(dtype).eps / 2
            assert (
                error
                <= tolerance(m, x_TI.float().numpy()) + unit * abs(expected) * (1 + 1e-3) + 1e-7
            ).all()


@pytest.mark.parametrize("layout", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_is_near_the_product_of_the_matrix_that_was_quantized(layout: str) -> None:
    """Rounding x to 8 bits, group by group, errs by at most half a step of 1/127 of the group's
    greatest, in each element."""
    rng = np.random.default_rng(0)
    w_OI, x_TI = rng.standard_normal((64, 512), dtype=np.float32) * 0.02, activations(6, 512)
    data = torch.from_numpy(quantize(w_OI, GGML[layout]))
    panels = PackedPanels.of(Blocks(layout, data, (64, 512)), dtype=torch.float32)
    exact_OI = dequantize(data.numpy(), GGML[layout]).astype(np.float64)
    y_TO = panels.matmul(torch.from_numpy(x_TI)).numpy()
    half_TG = rounded(Matrix(panels, exact_OI, exact_OI), x_TI)[1] / 2
    worst_TO = half_TG @ abs(exact_OI).reshape(64, -1, 32).sum(2).T
    assert (abs(y_TO - x_TI.astype(np.float64) @ exact_OI.T) <= worst_TO * 1.001).all()
    reference_TO = x_TI.astype(np.float64) @ w_OI.astype(np.float64).T
    error = np.linalg.norm(y_TO - reference_TO) / np.linalg.norm(reference_TO)
    assert error < (0.015 if layout == "q8_0" else 0.12)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_exact(layout: str, dtype: torch.dtype) -> None:
    for scales in (ORDINARY, EXTREME):
        m = matrix(layout, 37, 512, scales=scales, dtype=dtype)
        ids_T = torch.tensor([0, 36, 15, 16, 31, 32, 0])
        expected_TI = torch.from_numpy(m.w_OI)[ids_T].to(dtype)
        bits = torch.int32 if dtype == torch.float32 else torch.int16
        if not layout.startswith("int8_g"):  # zeros of which may have another sign
            assert torch.equal(m.panels.rows(ids_T).view(bits), expected_TI.view(bits))
        assert torch.equal(m.panels.rows(ids_T), expected_TI)
        assert torch.equal(m.panels.rows(ids_T.int()[None]), expected_TI[None])


def test_rows_of_ids_out_of_range_are_zero() -> None:
    m = matrix("q4_k", 20, 256)
    x_TI = m.panels.rows(torch.tensor([-1, 20, 31, 1 << 40, 3]))
    assert not x_TI[:4].any() and torch.equal(x_TI[4], torch.from_numpy(m.w_OI[3]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_makes_its_row_nan(layout: str, bad: float) -> None:
    m = matrix(layout, 20, 256)
    for tokens in (1, 3, 6, 20):
        x_TI = activations(tokens, 256)
        clean_TO = m.panels.matmul(torch.from_numpy(x_TI))
        x_TI[tokens // 2, 77] = bad
        y_TO = m.panels.matmul(torch.from_numpy(x_TI))
        assert y_TO[tokens // 2].isnan().all()
        others = torch.arange(tokens) != tokens // 2
        assert torch.equal(y_TO[others], clean_TO[others])


@pytest.mark.parametrize("size", [0.0, -0.0, 1e-45, 1e-38, 1e-31, 1e-20, 1e30])
def test_activations_of_any_size(size: float) -> None:
    m = matrix("q6_k", 20, 256)
    x_TI = activations(2, 256) * np.float32(size)
    y_TO = m.panels.matmul(torch.from_numpy(x_TI)).numpy()
    expected_TO = x_TI.astype(np.float64) @ m.w_OI.astype(np.float64).T
    assert np.isfinite(y_TO).all()
    assert (abs(y_TO - expected_TO) <= 0.02 * abs(x_TI).max() * abs(m.w_OI).sum(1) + 1e-29).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_argmax(layout: str) -> None:
    m = matrix(layout, 117, 256)
    for tokens in (1, 3, 7, 70):
        x_TI = torch.from_numpy(activations(tokens, 256))
        x_TI[tokens // 2, 3] = float("nan")
        expected = m.panels.matmul(x_TI).argmax(1)
        expected[tokens // 2] = -1
        assert torch.equal(m.panels.argmax(x_TI), expected)


def test_argmax_takes_the_lowest_of_equal_rows_and_passes_what_is_not_finite() -> None:
    data = random_blocks("q8_0", 1, 64, np.random.default_rng(0), ORDINARY).repeat(5000, 0)
    x_TI = torch.from_numpy(activations(3, 64))
    data[:5, :2] = np.full((5, 1), np.nan, np.float16).view(np.uint8)
    data[5:9, :2] = np.full((4, 1), np.inf, np.float16).view(np.uint8)
    panels = PackedPanels.of(
        Blocks("q8_0", torch.from_numpy(data), data.shape[:1] + (64,)), dtype=torch.float32
    )
    assert panels.argmax(x_TI).tolist() == [9, 9, 9]


def test_no_rows_of_x() -> None:
    m = matrix("q4_0", 20, 64, dtype=torch.bfloat16)
    assert m.panels.matmul(torch.empty(0, 64)).shape == (0, 20)
    assert m.panels.argmax(torch.empty(0, 64)).shape == (0,)
    assert m.panels.rows(torch.empty(0, dtype=torch.int64)).shape == (0, 64)


def test_x_that_is_not_contiguous_or_has_more_dimensions() -> None:
    m = matrix("q5_0", 20, 64)
    x_IT = torch.from_numpy(activations(64, 6))
    y_TO = m.panels.matmul(x_IT.T)
    assert torch.equal(y_TO, m.panels.matmul(x_IT.T.contiguous()))
    assert torch.equal(m.panels.matmul(x_IT.T.reshape(2, 3, 64)), y_TO.reshape(2, 3, 20))


def test_the_same_whatever_the_number_of_threads() -> None:
    m = matrix("q4_k", 1000, 512)
    x_TI = torch.from_numpy(activations(20, 512))
    one = m.panels.matmul(x_TI), m.panels.argmax(x_TI), m.panels.rows(torch.arange(1000))
    _native.set_threads(2)
    many = m.panels.matmul(x_TI), m.panels.argmax(x_TI), m.panels.rows(torch.arange(1000))
    assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))


def test_a_stack_of_matrices_is_packed_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    stack = np.stack([random_blocks("q6_k", 20, 512, rng, ORDINARY) for _ in range(3)])
    panels = pack("q6_k", (3, 20, 512), torch.from_numpy(stack), dtype=torch.float32)
    for e, one in enumerate(panels.view(3, -1)):
        assert torch.equal(
            one, pack("q6_k", (20, 512), torch.from_numpy(stack[e]), dtype=torch.float32)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stays_packed(layout: str) -> None:
    m = matrix(layout, 64, 512)
    kind = LAYOUTS[layout]
    grids = 0 if layout in GGML else 2 if "_sym_" in layout else 4
    loaded = 64 * 512 // kind.block * (kind.block_bytes + grids)
    assert (
        m.panels.nbytes
        == nbytes(layout, (64, 512))
        == _native.packed_panel_bytes(kind.number, 512) * 4
    )
    assert loaded <= m.panels.nbytes <= 1.04 * loaded


def test_refuses() -> None:
    assert refuses("q4_k", "bfloat16", (16, 512)) is None
    assert "iq2_xs" in str(refuses("iq2_xs", "bfloat16", (16, 512)))
    assert "float64" in str(refuses("q4_k", "float64", (16, 512)))
    assert "blocks of 256" in str(refuses("q4_k", "bfloat16", (16, 544)))
    assert "shape" in str(refuses("q4_k", "bfloat16", (512,)))
    wrong = torch.zeros(16, 100, dtype=torch.uint8)
    with pytest.raises(InfernoError, match="needs bytes"):
        pack("q4_k", (16, 256), wrong, dtype=torch.float32)
    with pytest.raises(InfernoError, match="needs scales"):
        pack("int4_g32", (16, 64), torch.zeros(16, 32, dtype=torch.uint8), dtype=torch.float32)
    with pytest.raises(InfernoError, match="beside its blocks"):
        pack(
            "q8_0",
            (1, 32),
            torch.zeros(1, 34, dtype=torch.uint8),
            torch.zeros(1, 1).half(),
            dtype=torch.float32,
        )
