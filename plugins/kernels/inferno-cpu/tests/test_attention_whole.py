"""Native attention of whole sequences against a naive one in float64.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, L tokens of a sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from attended import TOLERANCE, check, naive, need, views_of_one
from torch import Tensor

from inferno.contracts import AttentionNeed
from inferno.nn.batch import Batch
from inferno_cpu import _native
from inferno_cpu.attend import build
from inferno_cpu.attention import cache, refuses

LENGTHS = (1, 7, 64, 65, 150, 300)


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(2)


def whole(
    heads: int, kv_heads: int, dim: int, *, dtype: str = "float32", window: int | None = None
) -> AttentionNeed:
    return need(heads, kv_heads, dim, dtype, bidirectional=True, sliding_window=window)


def drawn(asked: AttentionNeed, lengths: Sequence[int]) -> list[list[Tensor]]:
    """Queries, keys and values of sequences."""
    generator = torch.Generator().manual_seed(0)
    heads = (asked.num_heads, asked.num_kv_heads, asked.num_kv_heads)
    return [
        [
            torch.randn(n, h, asked.head_dim, generator=generator).to(getattr(torch, asked.dtype))
            for h in heads
        ]
        for n in lengths
    ]


def attended(asked: AttentionNeed, sequences: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    lengths = [len(q_LHC) for q_LHC, _, _ in sequences]
    starts = [0, *itertools.accumulate(lengths)]
    empty = torch.zeros(len(lengths), 0, dtype=torch.int64)
    batch = Batch(
        token_ids_T=torch.zeros(starts[-1], dtype=torch.int64),
        positions_T=torch.cat([torch.arange(n) for n in lengths]),
        slots_T=torch.full((starts[-1],), -1),
        query_starts=starts,
        context_lens=lengths,
        blocks_SM=empty,
        block_size=16,
        query_starts_S1=torch.tensor(starts, dtype=torch.int32),
        context_lens_S=torch.tensor(lengths, dtype=torch.int32),
    )
    q, k, v = views_of_one(*(torch.cat(parts) for parts in zip(*sequences, strict=True)))
    return list(torch.split(build(asked)(q, k, v, {}, batch), lengths))


def compare(asked: AttentionNeed, lengths: Sequence[int] = LENGTHS) -> None:
    sequences = drawn(asked, lengths)
    for ours, qkv in zip(attended(asked, sequences), sequences, strict=True):
        check(ours, naive(qkv, 0, len(ours), asked), TOLERANCE[asked.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (71, 1)], ids=str)
def test_every_token_sees_all(dtype: str, heads: tuple[int, int]) -> None:
    compare(whole(*heads, 32, dtype=dtype))


@pytest.mark.parametrize("dim", [16, 48, 64, 256])
def test_head_dims(dim: int) -> None:
    for dtype in ("float32", "bfloat16"):
        compare(whole(2, 2, dim, dtype=dtype), (5, 130))


@pytest.mark.parametrize("window", [1, 5, 64, 200])
def test_windows(window: int) -> None:
    for dtype in ("float32", "bfloat16"):
        compare(whole(4, 2, 32, dtype=dtype, window=window))


def test_a_sequence_has_the_same_bits_whatever_is_beside_it() -> None:
    for window in (None, 40):
        asked = whole(6, 2, 32, dtype="bfloat16", window=window)
        sequences = drawn(asked, (3, 260, 128))
        together = attended(asked, sequences)
        _native.set_threads(1)
        for ours, qkv in zip(together, sequences, strict=True):
            assert torch.equal(ours, attended(asked, [qkv])[0])


def test_what_is_not_a_number_stays_in_its_sequence() -> None:
    asked = whole(2, 2, 16)
    sequences = drawn(asked, (20, 20))
    sequences[0][1][3] = float("nan")
    broken, other = attended(asked, sequences)
    assert broken.isnan().all() and torch.equal(other, attended(asked, sequences[1:])[0])


def test_nothing_is_kept_and_scores_are_not_capped() -> None:
    asked = whole(2, 2, 16)
    assert refuses(asked) is None and cache(asked, 16) == {}
    capped = need(bidirectional=True, soft_cap=3.0)
    assert refuses(capped) == "bidirectional attention is computed without soft_cap"
