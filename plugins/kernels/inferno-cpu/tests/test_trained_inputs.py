"""The kernels on inputs with the statistics of trained models (`inferno.testing.trained`): massive
channels beside ordinary ones, also within one group of 32, products with heavy tails, logits that
nearly tie. Bounds are relative to float64, and to what the reference's rounding of x loses.

Suffixes: T tokens, D channels, O rows, I columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from packed_matrices import matrix, product, tolerance
from torch import Tensor

from inferno.nn import Fp8Blocks, TableGroups
from inferno.nn.weight import Dense
from inferno.ops import reference as ops
from inferno.testing import trained_hidden, trained_logits, trained_matrix, trained_products
from inferno_cpu import _native, elementwise
from inferno_cpu.dense import Panels
from inferno_cpu.experts import combine, route
from inferno_cpu.layouts import LAYOUTS
from inferno_cpu.linear import stack

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half a unit in the last place, relative."""
TOKENS = 20
COLUMNS = 512
F32 = torch.float32
Inputs = Callable[[int, int], Tensor]


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(1)


@pytest.fixture(params=[trained_hidden, trained_products])
def inputs(request: pytest.FixtureRequest) -> Inputs:
    made: Inputs = request.param
    return made


# --- products -------------------------------------------------------------------------------------


def by_ggml(x_TI: np.ndarray) -> np.ndarray:
    """x as ggml's q8_0 rounds it: in groups of 32, with float16 scales where they fit."""
    x_TGi = x_TI.reshape(len(x_TI), -1, 32)
    step_TG1 = abs(x_TGi).max(2, keepdims=True) / np.float32(127)
    q_TGi = np.rint(x_TGi / np.where(step_TG1 == 0, 1, step_TG1))
    stored_TG1 = step_TG1.astype(np.float16).astype(np.float64)
    rounded: np.ndarray = (q_TGi * stored_TG1).reshape(x_TI.shape)
    return rounded


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_products_lose_what_ggml_loses(layout: str, inputs: Inputs) -> None:
    """Of a token about, of all not more. Layouts of whole rows round x by whole rows."""
    m, x_TI = matrix(layout, 100, COLUMNS), inputs(TOKENS, COLUMNS)
    w_OI, x = m.w_OI.astype(np.float64), x_TI.numpy()
    exact_TO, sizes_TO = x.astype(np.float64) @ w_OI.T, tolerance(m, x)
    ggml_T = np.linalg.norm(by_ggml(x) @ w_OI.T - exact_TO, axis=1)
    for tokens in (1, 5, TOKENS):
        y_TO = m.panels.matmul(x_TI[:tokens]).double().numpy()
        assert (abs(y_TO - product(m, x)[:tokens]) <= sizes_TO[:tokens]).all()
        if not layout.startswith("w8a8"):
            lost_T = np.linalg.norm(y_TO - exact_TO[:tokens], axis=1)
            assert (lost_T <= 1.25 * ggml_T[:tokens]).all()
            assert tokens < TOKENS or np.linalg.norm(lost_T) <= 1.02 * np.linalg.norm(ggml_T)


@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize("weight_type", DTYPES)
def test_dense_products(weight_type: torch.dtype, type_: torch.dtype, inputs: Inputs) -> None:
    """Alone and as a matrix of several."""
    w_OI = trained_matrix(64, COLUMNS).to(weight_type)
    x_TI = inputs(TOKENS, COLUMNS).clamp(-6e4, 6e4).to(type_)
    exact_TO = x_TI.double() @ w_OI.double().T
    bound_TO = 1e-6 * (x_TI.double().abs() @ w_OI.double().abs().T) + EPS[type_] * exact_TO.abs()
    panels = Panels.of(Dense(w_OI))
    for tokens in (1, 5, TOKENS):
        y_TO = panels.matmul(x_TI[:tokens])
        assert ((y_TO - exact_TO[:tokens]).abs() <= bound_TO[:tokens]).all()
    starts_E1 = torch.tensor([0, 7, TOKENS], dtype=torch.int32)
    y_NR = panels.grouped(x_TI, starts_E1)
    assert torch.equal(y_NR[:7], panels.matmul(x_TI[:7])[:, :32])
    assert torch.equal(y_NR[7:], panels.matmul(x_TI[7:])[:, 32:])


def codes(kind: str) -> Fp8Blocks | TableGroups:
    """A matrix of codes with the values of a trained one, nearly: the massive channels' columns
    share a scale with others, and are rounded more."""
    w_OI = trained_matrix(64, COLUMNS)
    if kind == "fp8":
        scales_O1 = w_OI.abs().amax(1, keepdim=True) / 448
        return Fp8Blocks((w_OI / scales_O1).to(torch.float8_e4m3fn), scales_O1, (1, COLUMNS), F32)
    scales_OG = w_OI.view(64, -1, 64).abs().amax(2)
    data_OB = torch.randint(0, 256, (64, COLUMNS // 2), dtype=torch.uint8)
    return TableGroups(data_OB, scales_OG, kind, F32)


@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize("kind", ["fp8", "nf4", "fp4"])
def test_products_of_codes(kind: str, type_: torch.dtype, inputs: Inputs) -> None:
    """Against the values that the panels hold."""
    panels = stack(codes(kind))
    assert isinstance(panels, Panels)
    w_OI, x_TI = panels.to_dense().data, inputs(TOKENS, COLUMNS).clamp(-6e4, 6e4).to(type_)
    exact_TO = x_TI.double() @ w_OI.double().T
    bound_TO = 1e-6 * (x_TI.double().abs() @ w_OI.double().abs().T)
    for tokens in (1, 5, TOKENS):
        y_TO = panels.matmul_float32(x_TI[:tokens])
        assert ((y_TO - exact_TO[:tokens]).abs() <= bound_TO[:tokens]).all()


@pytest.mark.parametrize("type_", DTYPES)
def test_the_best_of_a_head_is_that_of_its_logits_and_of_equals_the_first(
    type_: torch.dtype,
) -> None:
    """The matrix's last row equals its first; logits of trained size."""
    w_VD = 40 * trained_matrix(1000, COLUMNS).to(type_)
    panels, x_TD = Panels.of(Dense(w_VD)), trained_hidden(TOKENS, COLUMNS).to(type_)
    x_TD[3] = w_VD[0]  # which makes the first row, and the last one, the best
    logits_TV = panels.matmul_float32(x_TD)
    assert torch.equal(logits_TV[:, 0], logits_TV[:, -1])
    ids_T = panels.argmax(x_TD)
    assert torch.equal(ids_T, logits_TV.argmax(-1)) and ids_T[3] == 0
    assert torch.equal(ids_T, elementwise.argmax(logits_TV))


# --- norms, activations, argmax, experts ----------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [False, True])
def test_norms_of_massive_channels(dtype: torch.dtype, wide: bool) -> None:
    """The ordinary channels become some thousandths, and keep their bits."""
    x_TD = trained_hidden(TOKENS, COLUMNS).to(dtype)
    delta_TD = trained_hidden(TOKENS, COLUMNS, seed=1).to(dtype) / 8
    weight_D = trained_matrix(1, COLUMNS)[0].to(torch.float32 if wide else dtype)
    sum_TD, y_TD = elementwise.add_rms_norm(x_TD, delta_TD, weight_D, 1e-6)
    assert torch.equal(sum_TD, x_TD + delta_TD)
    for ours_TD, of_TD in ((y_TD, sum_TD), (elementwise.rms_norm(x_TD, weight_D, 1e-6), x_TD)):
        of_TD = of_TD.double()
        root_T1 = (of_TD.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        exact_TD = of_TD / root_T1 * weight_D.double()
        # Rounded before the weight and after it.
        bound_TD = (2.01 * EPS[dtype] + 4e-7) * exact_TD.abs() + torch.finfo(dtype).tiny
        assert ((ours_TD - exact_TD).abs() <= bound_TD).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
def test_rotations_of_keys_with_large_channels(dtype: torch.dtype, normed: bool) -> None:
    """Channels of 100 and 500, as biases of keys give; positions to 8 000."""
    k_TKC = torch.randn(TOKENS, 2, 64, generator=torch.Generator().manual_seed(0))
    k_TKC[:, :, 5] += 100
    k_TKC[:, :, 40] -= 500
    k_TKC = k_TKC.to(dtype)
    weight_C = torch.rand(64, generator=torch.Generator().manual_seed(1)) if normed else None
    angle_TE = torch.arange(TOKENS)[:, None] * 400 * 10_000.0 ** (-torch.arange(32) / 32)
    cos_TE, sin_TE = angle_TE.cos(), angle_TE.sin()
    ours_TKC = elementwise.norm_rope(k_TKC, weight_C, 1e-6, cos_TE, sin_TE, False)
    x_TKC = k_TKC.double()
    if weight_C is not None:
        x_TKC = x_TKC / (x_TKC.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight_C.double()
    a, b = x_TKC.chunk(2, -1)
    cos_T1E, sin_T1E = cos_TE.double()[:, None], sin_TE.double()[:, None]
    exact_TKC = torch.cat([a * cos_T1E - b * sin_T1E, b * cos_T1E + a * sin_T1E], -1)
    size_TKC = torch.cat([a.abs() + b.abs()] * 2, -1)
    # Normed values are rounded before they are turned.
    bound_TKC = EPS[dtype] * (exact_TKC.abs() + 1.01 * normed * size_TKC) + 4e-7 * size_TKC
    assert ((ours_TKC - exact_TKC).abs() <= bound_TKC).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_gates(dtype: torch.dtype) -> None:
    gate_TI, up_TI = (trained_products(TOKENS, 300, seed=seed).to(dtype) for seed in (0, 1))
    exact_TI = gate_TI.double() * gate_TI.double().sigmoid() * up_TI.double()
    kept_TI = exact_TI.abs() < torch.finfo(dtype).max
    assert kept_TI.double().mean() > 0.9 and exact_TI[kept_TI].abs().max() > 1e3
    ours_TI = elementwise.silu_mul(gate_TI, up_TI)
    bound_TI = (2.01 * EPS[dtype] + 1e-6) * exact_TI.abs() + max(1e-30, torch.finfo(dtype).tiny)
    assert ((ours_TI - exact_TI).abs() <= bound_TI)[kept_TI].all()
    theirs_TI = ops.silu_mul(gate_TI, up_TI)
    assert torch.equal(ours_TI[~kept_TI].isinf(), theirs_TI[~kept_TI].isinf())


@pytest.mark.parametrize("peak", [40.0, 1e4])
@pytest.mark.parametrize("vocab", [100, 49152])
def test_argmax_of_logits_that_nearly_tie(peak: float, vocab: int) -> None:
    logits_TV = trained_logits(6, vocab, peak=peak)
    best = [row.index(max(row)) for row in logits_TV.tolist()]
    assert elementwise.argmax(logits_TV).tolist() == best
    for dtype in (torch.bfloat16, torch.float16):  # they tie: the lowest id
        rounded_TV = logits_TV.to(dtype)
        first = [row.index(max(row)) for row in rounded_TV.tolist()]
        assert elementwise.argmax(rounded_TV).tolist() == first and first != best


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_of_massive_channels(dtype: torch.dtype) -> None:
    x_TD = trained_hidden(TOKENS, COLUMNS).to(dtype)
    weight_ED = trained_matrix(33, COLUMNS)[:-1].contiguous()
    experts_TK, weights_TK = route(x_TD, weight_ED, None, None, 4, False, True, 1.0)
    logits_TE = x_TD.double() @ weight_ED.double().T
    exact_TK = logits_TE.gather(1, experts_TK).softmax(-1)
    assert torch.equal(experts_TK, logits_TE.topk(4).indices)
    assert ((weights_TK - exact_TK).abs() <= 1e-5 * exact_TK + 1e-30).all()
    y_ND, places_TK = x_TD.repeat(4, 1), torch.arange(4 * TOKENS).view(TOKENS, 4)
    exact_TD = (weights_TK.double()[..., None] * y_ND[places_TK].double()).sum(1)
    size_TD = (weights_TK.double()[..., None] * y_ND[places_TK].double().abs()).sum(1)
    error_TD = (combine(y_ND, places_TK, weights_TK) - exact_TD).abs()
    assert (error_TD <= EPS[dtype] * exact_TD.abs() + 1e-6 * size_TD).all()
