"""Torch's attention of whole sequences, beside products of float64.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, L tokens of a sequence.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.builtin.torch_cache import layout, refuses
from inferno.builtin.torch_whole import attend_of, groups_of
from inferno.contracts import AttentionNeed, AttentionSpec, Device
from inferno.nn.batch import Batch

CPU = Device(kind="cpu", name="", total=1 << 30, free=1 << 30)


def need_of(window: int | None, kv_heads: int = 4, **more: Any) -> AttentionNeed:
    spec = AttentionSpec(
        num_heads=4,
        num_kv_heads=kv_heads,
        head_dim=16,
        scale=0.3,
        sliding_window=window,
        bidirectional=True,
        **more,
    )
    return AttentionNeed.of(spec, dtype="float32", device=CPU, cache_dtype="auto")


def batch_of(lengths: list[int]) -> Batch:
    empty = torch.empty(0, dtype=torch.int64)
    starts = [0, *itertools.accumulate(lengths)]
    return Batch(
        token_ids_T=empty,
        positions_T=torch.cat([torch.arange(n) for n in lengths]),
        slots_T=empty,
        query_starts=starts,
        context_lens=lengths,
        blocks_SM=empty,
        block_size=64,
        query_starts_S1=torch.tensor(starts, dtype=torch.int32),
        context_lens_S=torch.tensor(lengths, dtype=torch.int32),
    )


def naive(q_LHC: Tensor, k_LKC: Tensor, v_LKC: Tensor, need: AttentionNeed) -> Tensor:
    groups = need.num_heads // need.num_kv_heads
    k_LHC, v_LHC = (x.double().repeat_interleave(groups, 1) for x in (k_LKC, v_LKC))
    scores = torch.einsum("qhc,khc->hqk", q_LHC.double(), k_LHC) * need.scale
    if need.sliding_window is not None:
        at = torch.arange(len(q_LHC))
        far = (at[:, None] - at).abs() >= need.sliding_window
        scores.masked_fill_(far, float("-inf"))
    return torch.einsum("hqk,khc->qhc", scores.softmax(-1), v_LHC).float()


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("window", [None, 1, 9, 300, 5000])
def test_every_token_attends_to_its_sequence_or_those_near_it(
    window: int | None, kv_heads: int
) -> None:
    """Sequences of equal length apart and side by side, and longer than a run of queries."""
    need, lengths = need_of(window, kv_heads), [7, 600, 1, 7, 257, 1, 1, 600, 600]
    generator = torch.Generator().manual_seed(0)
    shapes = (need.num_heads, kv_heads, kv_heads)
    q, k, v = (torch.randn(sum(lengths), n, 16, generator=generator) for n in shapes)
    out = attend_of(need)(q, k, v, {}, batch_of(lengths))
    alone = []
    for some_q, some_k, some_v in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        expected = naive(some_q, some_k, some_v, need)
        alone.append(attend_of(need)(some_q, some_k, some_v, {}, batch_of([len(some_q)])))
        torch.testing.assert_close(alone[-1], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(out, torch.cat(alone)), "neighbours change no bit"


def test_sequences_side_by_side_are_not_copied() -> None:
    groups = groups_of(batch_of([5, 5, 3, 5]), torch.device("cpu"))
    assert [length for _, length in groups] == [5, 3]
    assert groups[1][0] == slice(10, 13) and isinstance(groups[0][0], Tensor)
    [(tokens, length)] = groups_of(batch_of([4, 4, 4]), torch.device("cpu"))
    assert tokens == slice(0, 12) and length == 4


def test_it_keeps_nothing_and_refuses_what_it_does_not_compute() -> None:
    assert layout(need_of(None), 16) == {} and refuses(need_of(8)) is None
    assert "sinks" in str(refuses(need_of(None, sinks=True)))
