"""Stacked matrices, each times its own rows: equal to each one alone, and close to float64.

Suffixes: E matrices of R rows each, I columns, N rows of x, sorted by matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_matrices import GGML
from torch import Tensor

from inferno.nn import Dense, Experts, Finalize, Linear, Weight
from inferno.testing import alike
from inferno_cpu import _native
from inferno_cpu.dense import Panels
from inferno_cpu.dtypes import DTYPES
from inferno_cpu.layouts import LAYOUTS
from inferno_cpu.linear import stack
from inferno_cpu.packed import PackedPanels

pytestmark = pytest.mark.usefixtures("isa")
COUNTS = [
    [1],
    [0],
    [0, 0, 0],
    [40],
    [0, 5, 0],
    [1] * 8,
    [1, 0, 0, 2, 7, 0, 1, 33],
    [0, 0, 19, 0],
    [3, 17, 0, 9, 8, 16, 1],
    [600, 1, 0, 2, 511, 0],
    [0, 0, 1200, 0, 1],
]
"""Rows of x for each matrix: none, one, all; more than dense ones pack at a time (512), within one
matrix and between two."""
ROWS = [16, 48, 1, 20, 37]
"""Rows of each matrix. If not divisible by 16, neighbours share panels."""


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = _native.threads()
    _native.set_threads(request.param)
    yield request.param
    _native.set_threads(before)


class Blocks:
    """Random blocks of a layout whose float16 scales are finite."""

    def __init__(self, layout: str, rows: int, columns: int, seed: int = 0) -> None:
        self.layout, self.shape, self.dtype = layout, (rows, columns), torch.float32
        kind = LAYOUTS[layout]
        generator = torch.Generator().manual_seed(seed)
        blocks_RBb = torch.randint(
            256,
            (rows, columns // kind.block, kind.block_bytes),
            dtype=torch.uint8,
            generator=generator,
        )
        at = {"q6_k": 208, "q3_k": 108, "q2_k": 80}.get(layout, 0)
        blocks_RBb[..., at + 1] = 0x24  # a float16 between 2^-6 and 2^-5
        if layout in ("q2_k", "q4_k", "q5_k", "q4_1", "q5_1"):
            blocks_RBb[..., at + 3] = 0x20
        if layout == "mxfp4":
            blocks_RBb[..., 0] = 120  # 2^-7
        self.data = blocks_RBb.flatten(1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def starts(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)


def each(
    weights: Sequence[Panels] | Sequence[PackedPanels],
    x_NI: Tensor,
    counts: Sequence[int],
    biases: Sequence[Tensor | None],
) -> Tensor:
    parts = x_NI.split(list(counts))
    return torch.cat(
        [w.matmul(part, bias) for w, part, bias in zip(weights, parts, biases, strict=True)]
    )


def unbiased(counts: Sequence[int]) -> list[None]:
    return [None] * len(counts)


@alike
@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize("weight_type", DTYPES)
def test_dense(weight_type: torch.dtype, type_: torch.dtype) -> None:
    for counts in COUNTS:
        for rows in ROWS if sum(counts) < 100 else ROWS[:1]:
            matrices = [random(rows, 34, seed=e).to(weight_type) for e in range(len(counts))]
            x_NI = random(sum(counts), 34, seed=rows).to(type_)
            y_NR = Panels.of(Dense(torch.cat(matrices))).grouped(x_NI, starts(counts))
            assert torch.equal(
                y_NR, each([Panels.of(Dense(w)) for w in matrices], x_NI, counts, unbiased(counts))
            )
            exact = torch.cat(
                [
                    p.double() @ w.double().T
                    for p, w in zip(x_NI.split(counts), matrices, strict=True)
                ]
            )
            assert y_NR.shape == (sum(counts), rows) and y_NR.dtype == type_
            torch.testing.assert_close(y_NR.double(), exact, rtol=torch.finfo(type_).eps, atol=1e-4)


@pytest.mark.parametrize("layout", GGML)
def test_packed(layout: str) -> None:
    columns = max(64, LAYOUTS[layout].block)
    for counts in COUNTS:
        for rows in ROWS if layout in ("q8_0", "q4_k") and sum(counts) < 100 else ROWS[:1]:
            matrices = [Blocks(layout, rows, columns, seed=e) for e in range(len(counts))]
            whole = Blocks(layout, 1, columns)
            whole.data, whole.shape = (
                torch.cat([m.data for m in matrices]),
                (rows * len(counts), columns),
            )
            x_NI = random(sum(counts), columns, seed=rows)
            y_NR = PackedPanels.of(whole, dtype=torch.float32).grouped(x_NI, starts(counts))
            alone = [PackedPanels.of(m, dtype=torch.float32) for m in matrices]
            assert y_NR.isfinite().all() and y_NR.shape == (sum(counts), rows)
            assert torch.equal(y_NR, each(alone, x_NI, counts, unbiased(counts)))


@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize("rows", [16, 20])
def test_each_matrix_has_its_own_bias(type_: torch.dtype, rows: int) -> None:
    counts = [2, 0, 9, 1]
    biases_ER = random(4, rows, seed=9).to(type_)
    x_NI = random(sum(counts), 64, seed=1).to(type_)
    matrices = [random(rows, 64, seed=e).to(torch.bfloat16) for e in range(4)]
    y_NR = Panels.of(Dense(torch.cat(matrices))).grouped(x_NI, starts(counts), biases_ER.flatten())
    assert torch.equal(
        y_NR, each([Panels.of(Dense(w)) for w in matrices], x_NI, counts, list(biases_ER))
    )
    blocks = Blocks("q8_0", 4 * rows, 64)
    alone = []
    for e in range(4):
        one = Blocks("q8_0", rows, 64)
        one.data = blocks.data[e * rows : (e + 1) * rows]
        alone.append(PackedPanels.of(one, dtype=type_))
    y_NR = PackedPanels.of(blocks, dtype=type_).grouped(x_NI, starts(counts), biases_ER.flatten())
    assert torch.equal(y_NR, each(alone, x_NI, counts, list(biases_ER)))


def test_rows_that_are_views() -> None:
    wide_NI = random(6, 90).to(torch.bfloat16)
    panels = Panels.of(Dense(random(40, 45).to(torch.bfloat16)))
    for x_NI in (wide_NI[:, 5:50], wide_NI[:, ::2]):
        assert torch.equal(
            panels.grouped(x_NI, starts([4, 2])), panels.grouped(x_NI.contiguous(), starts([4, 2]))
        )


def test_what_is_not_finite_stays_within_its_row() -> None:
    for panels in (
        Panels.of(Dense(random(64, 64))),
        PackedPanels.of(Blocks("q8_0", 64, 64), dtype=torch.float32),
    ):
        x_NI = random(6, 64)
        clean_NR = panels.grouped(x_NI, starts([2, 0, 3, 1]))
        x_NI[3, 7] = float("nan")
        y_NR = panels.grouped(x_NI, starts([2, 0, 3, 1]))
        assert y_NR[3].isnan().all()
        others = [0, 1, 2, 4, 5]
        assert torch.equal(y_NR[others], clean_NR[others])


def test_starts_are_read_when_it_is_run_again() -> None:
    for panels in (
        Panels.of(Dense(random(64, 64))),
        PackedPanels.of(Blocks("q4_k", 64, 256), dtype=torch.float32),
    ):
        x_NI = random(8, panels.shape[1])
        starts_E1 = starts([8, 0, 0, 0])
        with _native.Recording() as recording:
            y_NR = panels.grouped(x_NI, starts_E1)
        for counts in ([0, 3, 4, 1], [0, 0, 0, 8], [2, 2, 2, 2]):
            starts_E1.copy_(starts(counts))
            expected_NR = panels.grouped(x_NI, starts(counts))
            recording.replay()
            assert torch.equal(y_NR, expected_NR)


@pytest.mark.parametrize("rows", [16, 24, 5])
def test_hundreds_of_matrices_stack(rows: int) -> None:
    matrices = [random(rows, 34, seed=e).to(torch.bfloat16) for e in range(300)]
    weight = stack(*(Dense(w) for w in matrices))
    assert isinstance(weight, Panels) and torch.equal(weight.to_dense().data, torch.cat(matrices))


@pytest.mark.parametrize("inner", [16, 24, 5])
def test_a_layer_of_experts(inner: int) -> None:
    def experts(build: Callable[..., Weight | None]) -> Experts:
        layer = Experts(6, 32, inner)
        seeds = count()
        for module in layer.modules():
            if isinstance(module, Linear):
                module.weight = Dense(random(*module.weight.shape, seed=next(seeds)))
        layer.finalize(
            Finalize(stack=lambda weights, *, grouped=False, rows=False: build(*weights))
        )
        return layer

    native, torch_ = experts(stack), experts(lambda first, *others: first.concatenate(others))
    assert (group := native.near) is not None
    assert isinstance(group.gate_up.weight, Panels) and isinstance(group.down.weight, Panels)
    for tokens in (1, 50):
        x_TD, weights_TK = random(tokens, 32), random(tokens, 2, seed=1)
        experts_TK = random(tokens, 6, seed=2).topk(2).indices
        ours, theirs = native(x_TD, experts_TK, weights_TK), torch_(x_TD, experts_TK, weights_TK)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    weight_type=st.sampled_from(list(DTYPES)),
    type_=st.sampled_from(list(DTYPES)),
)
@settings(deadline=None, derandomize=True, database=None, max_examples=40)
def test_any_size(
    counts: list[int], rows: int, columns: int, weight_type: torch.dtype, type_: torch.dtype
) -> None:
    matrices = [random(rows, columns, seed=e).to(weight_type) for e in range(len(counts))]
    x_NI = random(sum(counts), columns, seed=columns).to(type_)
    y_NR = Panels.of(Dense(torch.cat(matrices))).grouped(x_NI, starts(counts))
    assert torch.equal(
        y_NR, each([Panels.of(Dense(w)) for w in matrices], x_NI, counts, unbiased(counts))
    )
