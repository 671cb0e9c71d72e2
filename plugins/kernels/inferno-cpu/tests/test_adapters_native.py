"""Low-rank adapters against float64, and a token alone against the same token among others.

Suffixes: T tokens, I inputs, O outputs, S slots, R rows of a slot's first matrices, N rank.
"""

from __future__ import annotations

import pytest
import torch

from inferno_cpu import _native
from inferno_cpu.adapters import expand, shrink

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [(1, 64, 8, 64), (2, 33, 5, 7), (7, 576, 16, 192), (37, 100, 17, 90), (300, 48, 8, 33)]
"""T, I, N, O: whole tiles, odd rests, more tokens than a thread takes at once."""


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(3)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_those_of_each_tokens_slot(dtype: torch.dtype) -> None:
    for tokens, inputs, rank, outputs in SIZES:
        x_TI = draw(tokens, inputs + 5).to(dtype)[:, 2:-3]
        down_SRI = (draw(3, 2 * rank, inputs, seed=1) / inputs**0.5).to(dtype)
        ups = [(draw(3, rank, outputs + i, seed=2) / rank**0.5).to(dtype) for i in range(2)]
        slots_T = torch.randint(-1, 3, (tokens,), generator=torch.Generator().manual_seed(3))
        slots_T[: tokens // 2] = 1
        y_TO = draw(tokens, 2 * outputs + 1, seed=4).to(dtype)

        own_TRI = down_SRI.double()[slots_T.clamp(min=0)]
        exact_TR = torch.einsum("tri,ti->tr", own_TRI, x_TI.double())
        exact_TR[slots_T < 0] = 0
        h_TR = shrink(x_TI, down_SRI, slots_T)
        torch.testing.assert_close(h_TR.double(), exact_TR, rtol=1e-5, atol=1e-5)

        exact_TO = y_TO.double()
        first, at = 0, 0
        for up_SNO in ups:
            own_TNO = up_SNO.double()[slots_T.clamp(min=0)]
            h_TN = h_TR[:, at : at + rank].double()
            last = first + up_SNO.shape[2]
            exact_TO[:, first:last] += torch.einsum("tn,tno->to", h_TN, own_TNO)
            first, at = last, at + rank
        result_TO = expand(y_TO.clone(), h_TR, ups, slots_T)
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
        torch.testing.assert_close(result_TO.double(), exact_TO, rtol=tolerance, atol=tolerance)
        assert torch.equal(result_TO[slots_T < 0], y_TO[slots_T < 0])

        for t in range(0, tokens, 7):
            alone_1R = shrink(x_TI[t : t + 1], down_SRI, slots_T[t : t + 1])
            assert torch.equal(alone_1R[0], h_TR[t])
            alone_1O = expand(y_TO[t : t + 1].clone(), alone_1R, ups, slots_T[t : t + 1])
            assert torch.equal(alone_1O[0], result_TO[t])
