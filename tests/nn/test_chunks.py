"""Chunked attention by backends that know nothing of it.

Suffixes: T packed tokens, L tokens of a sequence, H heads, K key/value heads, C head dim.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import attrs
import pytest
import torch
from torch import Tensor

from inferno.contracts import AttentionBackend, AttentionNeed, AttentionSpec, Device
from inferno.core.kvcache import KVCache
from inferno.nn import Attention, in_chunks
from inferno.nn.batch import Batch
from inferno.testing.tiny import installed

BLOCK = 4
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, attention_chunk=12)
STEPS: Sequence[Sequence[int]] = [
    (1, 12, 40, 0),
    (11, 1, 1, 3),
    (1, 1, 30, 9),
    (1, 1, 1, 1),
    (1, 1, 1, 1),
    (20, 0, 1, 12),
]
"""Tokens per step of each of four sequences: within a chunk, up to its end, over several."""


def batch_of(counts: Sequence[int], done: Sequence[int], tables: Tensor, padded: bool) -> Batch:
    """A step after `done` tokens of each sequence; with a padding row before the others."""
    rows = [row for row, count in enumerate(counts) if count]
    spans = [(done[row], done[row] + counts[row]) for row in rows]
    places = [place for span in spans for place in range(*span)]
    owners = [row for row, (a, b) in zip(rows, spans, strict=True) for _ in range(a, b)]
    at = list(zip(owners, places, strict=True))
    slots = [int(tables[row, p // BLOCK]) * BLOCK + p % BLOCK for row, p in at]
    lens, starts = [b for _, b in spans], [0]
    for a, b in spans:
        starts.append(starts[-1] + b - a)
    if padded:
        places, slots, lens, rows = [0, *places], [-1, *slots], [0, *lens], [0, *rows]
        starts = [0, *(start + 1 for start in starts)]
    return Batch(
        token_ids_T=torch.zeros(len(places), dtype=torch.int64),
        positions_T=torch.tensor(places),
        slots_T=torch.tensor(slots),
        query_starts=starts,
        context_lens=lens,
        blocks_SM=tables[rows],
        block_size=BLOCK,
        query_starts_S1=torch.tensor(starts, dtype=torch.int32),
        context_lens_S=torch.tensor(lens, dtype=torch.int32),
    )


def exact(qkv: Sequence[Tensor], chunk: int) -> Tensor:
    """Return the attention of a whole sequence, in float64."""
    q_LHC, k_LKC, v_LKC = (x.double() for x in qkv)
    k_LHC, v_LHC = (x.repeat_interleave(2, dim=1) for x in (k_LKC, v_LKC))
    place_L = torch.arange(len(q_LHC))
    seen_LL = (place_L[None] <= place_L[:, None]) & (
        place_L[None] // chunk == place_L[:, None] // chunk
    )
    scores_HLL = torch.einsum("qhc,khc->hqk", q_LHC, k_LHC) * SPEC.scale
    shares_HLL = scores_HLL.masked_fill(~seen_LL, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khc->qhc", shares_HLL, v_LHC)


def layer_of(name: str) -> Attention:
    need = AttentionNeed.of(SPEC, dtype="float32", device=Device("cpu"), cache_dtype="auto")
    backend = installed().named(AttentionBackend, name).item
    layer = Attention(0, SPEC)
    layer.attend = backend.build(need)
    layer.cache = KVCache.allocate([backend.cache(need, BLOCK)], 80, "cpu").layers[0]
    return layer


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_any_backend_attends_to_chunks(captured: bool, padded: bool) -> None:
    torch.manual_seed(0)
    layer, totals = layer_of("torch"), [sum(counts) for counts in zip(*STEPS, strict=True)]
    blocks = list(range(80))
    random.Random(0).shuffle(blocks)
    tables = torch.tensor(blocks).view(4, 20)
    qkv = [[torch.randn(n, h, 16) for h in (4, 2, 2)] for n in totals]
    wanted = [exact(each, 12) for each in qkv]
    done = [0, 0, 0, 0]
    for counts in STEPS:
        batch = batch_of(counts, done, tables, padded)
        if captured and max(counts) == 1:
            bound = [80] * len(batch.context_lens)
            batch = attrs.evolve(batch, captured=True, context_lens=bound)
        spans = [(row, done[row], done[row] + n) for row, n in enumerate(counts) if n]
        q, k, v = (torch.cat([qkv[row][i][a:b] for row, a, b in spans]) for i in range(3))
        if padded:
            q, k, v = (torch.cat([x[:1], x]) for x in (q, k, v))
        ours = layer(q.flatten(1), k.flatten(1), v.flatten(1), batch)[int(padded) :]
        theirs = torch.cat([wanted[row][a:b] for row, a, b in spans]).flatten(1)
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
        done = [a + b for a, b in zip(done, counts, strict=True)]


def test_a_step_is_cut_once_and_only_where_it_must() -> None:
    tables = torch.arange(80).view(4, 20)
    short = batch_of((12, 3, 1, 0), (0, 0, 0, 0), tables, False)
    assert in_chunks(short, 12) is short
    long = batch_of((13, 3, 30, 0), (0, 0, 11, 0), tables, False)
    cut = in_chunks(long, 12)
    assert cut is in_chunks(long, 12) is not in_chunks(long, 16)
    assert cut.context_lens == [12, 1, 3, 12, 12, 12, 5]
    assert [b - a for a, b in pairwise(cut.query_starts)] == [12, 1, 3, 1, 12, 12, 5]
    assert cut.query_starts_S1.tolist() == list(cut.query_starts)
    assert cut.blocks_SM[:, 0].tolist() == [0, 3, 20, 40, 43, 46, 49]
    assert cut.slots_T is long.slots_T, "keys are stored where they were"
