"""The delta rule with a decay for each channel, against its definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inferno.nn import channel_gated_delta
from inferno.nn.batch import Batch


def batch_of(lengths: list[int]) -> Batch:
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    empty = torch.empty(0)
    return Batch(
        token_ids_T=empty,
        positions_T=empty,
        slots_T=empty,
        query_starts=starts,
        context_lens=lengths,
        blocks_SM=empty,
        block_size=16,
        query_starts_S1=empty,
        context_lens_S=empty,
    )


def defined(inputs: list[Tensor], state_HKV: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence, token by token."""
    outputs = []
    for q_HK, k_HK, v_HV, g_HK, beta_H in zip(*(x.double() for x in inputs), strict=True):
        q_HK, k_HK = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q_HK, k_HK))
        state_HKV = state_HKV * g_HK.exp()[..., None]
        new_HV = beta_H[:, None] * (v_HV - torch.einsum("hk,hkv->hv", k_HK, state_HKV))
        state_HKV = state_HKV + k_HK[..., None] * new_HV[:, None]
        outputs.append(torch.einsum("hk,hkv->hv", q_HK, state_HKV) * q_HK.shape[-1] ** -0.5)
    return torch.stack(outputs), state_HKV


@pytest.mark.parametrize("strength", [0.01, 2.0, 200.0])
def test_chunks_and_tokens_compute_the_definition(strength: float) -> None:
    """Long and short sequences beside single tokens, with weak and with strong decay, which of some
    channels leaves nothing."""
    draw, lengths = torch.Generator().manual_seed(0), [100, 1, 1, 33, 2]
    total, heads, keys, values = sum(lengths), 3, 16, 8

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    inputs = [
        noise(total, heads, keys),
        noise(total, heads, keys),
        noise(total, heads, values),
        -strength * noise(total, heads, keys).square(),
        noise(total, heads).sigmoid(),
    ]
    states = noise(len(lengths), heads, keys, values)
    q, k, v, g, beta = inputs
    y_THV, new = channel_gated_delta(q, k, v, g, beta, states, batch_of(lengths))
    first = 0
    for sequence, length in enumerate(lengths):
        span = slice(first, first + length)
        expected, last = defined([x[span] for x in inputs], states[sequence].double())
        torch.testing.assert_close(y_THV[span].double(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(new[sequence].double(), last, rtol=1e-4, atol=1e-5)
        first += length
