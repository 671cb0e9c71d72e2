"""Packed matrices against float64 products of their dequantized rows, for every layout and
instruction set.

Suffixes: O rows, I columns, B bytes of a row, G groups of 32 columns, T tokens.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from packed_matrices import (
    EXTREME,
    GGML,
    ORDINARY,
    Blocks,
    Matrix,
    activations,
    matrix,
    product,
    random_blocks,
    rounded,
    scale_bytes,
    tolerance,
)

from inferno.errors import InfernoError
from inferno.testing import alike
from inferno_cpu import _native
from inferno_cpu.layouts import LAYOUTS, nbytes, refuses
from inferno_cpu.packed import PackedPanels, pack

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROWS = [1, 15, 16, 17, 100]
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 33, 64, 100]


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(1)


@alike
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
    for layout in ("int8_g128", "int8_sym_g128", "w8a8", "w8a8_sym"):
        data = torch.full((16, 128), code, dtype=torch.uint8)
        kind = torch.float32 if layout.startswith("w8a8") else torch.float16
        grids = [torch.full((16, 1), value, dtype=kind) for value in (0.5, 128.0)]
        grids = grids[: 1 if "_sym" in layout else 2]
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
    half_TG = rounded(Matrix(panels, exact_OI, exact_OI), x_TI).scale_TG / 2
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


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_in_the_only_group_makes_its_row_nan(bad: float) -> None:
    m, x_TI = matrix("q4_1", 20, 32), activations(20, 32)
    x_TI[3, 31] = bad
    for tokens in (5, 20):
        y_TO = m.panels.matmul(torch.from_numpy(x_TI[:tokens]))
        assert torch.equal(y_TO.isnan().any(1), torch.arange(tokens) == 3)
        assert y_TO[3].isnan().all()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if not name.startswith("w8a8")])
def test_the_greatest_element_of_a_row_takes_nothing_from_its_neighbours(layout: str) -> None:
    """Wherever it is, they lose half a step of the greatest among themselves at most."""
    m, rest_TI, rows = matrix(layout, 37, 512), activations(40, 512), np.arange(40)
    columns = rows * 77 % 512
    columns[20:30], columns[30:] = 511, 0
    rest_TI[rows, columns] = 0
    half_TG = abs(rest_TI.astype(np.float64)).reshape(40, -1, 32).max(2) / 254
    w_OI = m.w_OI.astype(np.float64)
    x_TI = rest_TI.copy()
    x_TI[rows, columns] = 1e4 * (-1.0) ** rows
    bound_TO = 1.001 * half_TG @ abs(w_OI).reshape(37, -1, 32).sum(2).T + tolerance(m, x_TI)
    for tokens in (1, 5, 40):
        y_TO = m.panels.matmul(torch.from_numpy(x_TI[:tokens])).numpy()
        exact_TO = x_TI[:tokens].astype(np.float64) @ w_OI.T
        assert (abs(y_TO - exact_TO) <= bound_TO[:tokens]).all()


@pytest.mark.parametrize("size", [0.0, -0.0, 1e-45, 1e-38, 1e-31, 1e-20, 1e30])
def test_activations_of_any_size(size: float) -> None:
    m = matrix("q6_k", 20, 256)
    x_TI = activations(2, 256) * np.float32(size)
    y_TO = m.panels.matmul(torch.from_numpy(x_TI)).numpy()
    expected_TO = x_TI.astype(np.float64) @ m.w_OI.astype(np.float64).T
    assert np.isfinite(y_TO).all()
    assert (abs(y_TO - expected_TO) <= 0.02 * abs(x_TI).max() * abs(m.w_OI).sum(1) + 1e-29).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_for_heads_are_float32(layout: str, dtype: torch.dtype) -> None:
    """Rounded to x's type, they are what layers are given; the best of them is the argmax."""
    m = matrix(layout, 100, 256)
    bias_O = (8 * torch.randn(100)).to(dtype)
    for tokens in (1, 5, 40):
        x_TI = torch.from_numpy(activations(tokens, 256)).to(dtype)
        y_TO = m.panels.matmul_float32(x_TI)
        assert y_TO.dtype == torch.float32
        assert torch.equal(y_TO, m.panels.matmul(x_TI.float()))
        assert torch.equal(y_TO.to(dtype), m.panels.matmul(x_TI))
        assert torch.equal(y_TO.argmax(-1), m.panels.argmax(x_TI))
        assert torch.equal(m.panels.matmul_float32(x_TI, bias_O), y_TO + bias_O.float())


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_has_the_same_product_in_any_company(layout: str) -> None:
    """Few rows are multiplied by packed panels, many by unpacked ones or by tiles."""
    m = matrix(layout, 37, 512)
    x_TI = torch.from_numpy(activations(40, 512))
    y_TO = m.panels.matmul(x_TI)
    for count in (1, 3, 17):
        assert torch.equal(m.panels.matmul(x_TI[5 : 5 + count]), y_TO[5 : 5 + count])


@pytest.mark.parametrize("layout", ["q8_0", "q4_k", "q6_k"])
def test_a_row_has_the_same_product_in_a_long_prompt(layout: str) -> None:
    """More rows of x than fit in a cache are multiplied in parts; the last panel has no pair."""
    m = matrix(layout, 37, 1024)
    x_TI = torch.from_numpy(activations(1600, 1024))
    y_TO = m.panels.matmul(x_TI)
    for begin in range(0, 1600, 97):
        assert torch.equal(m.panels.matmul(x_TI[begin : begin + 1]), y_TO[begin : begin + 1])


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
    grids = 0 if layout in GGML or kind.head else 2 if "_sym_" in layout else 4
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
