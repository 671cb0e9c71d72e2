"""Steps of paged attention: the outputs of a backend, and of naive attention in float64.

Suffixes: H query heads, K key/value heads, C head dim, L tokens of a sequence, T packed tokens of a
step.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from inferno.contracts import Attend, AttentionBackend, AttentionNeed, Indexed
from inferno.core.kvcache import KVCache
from inferno.nn.batch import Batch
from inferno.testing.naive_attention import (
    LONGEST,
    as_stored,
    drawn,
    drawn_index,
    drawn_waves,
    exact,
    index_rows,
    naive,
    waves_of,
)

Draw = Callable[[AttentionNeed, int, int, str], tuple[list[list[Tensor]], Tensor | None]]
"""Like `drawn`: maps a number of sequences and their length to queries, keys, values and sinks."""

STEPS: Sequence[Sequence[int]] = [
    (7, 1, 0, 33),
    (16, 1, 5, 1),
    (1, 1, 1, 1),
    (0, 30, 12, 1),
    (1, 1, 1, 1),
]
"""Tokens per step of each of four sequences: prompts, prompt chunks and single tokens, mixed."""


def run_steps(
    item: AttentionBackend,
    need: AttentionNeed,
    block_size: int,
    steps: Sequence[Sequence[int]],
    *,
    cache: dict[str, Tensor] | None = None,
    padding: bool = False,
    captured: bool = False,
    longest: int = LONGEST,
    compared: int | None = None,
    draw: Draw = drawn,
    filled: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each step's output, of the backend and of naive attention. `cache` receives the cache's
    tensors. With `padding`, each step has three padding rows, which are not returned. With
    `captured`, steps of single tokens are as in a capture. No sequence may have more than `longest`
    tokens. With `compared`, only the last `compared` tokens of each sequence and step are returned,
    and naive attention runs on the device too. `draw` draws other sequences then, whose keys and
    values naive attention takes as the cache holds them. With `filled`, the first step only fills
    the cache, over windows of one token where the backend has them, and is not returned."""
    assert compared is not None or draw is drawn, "naive attention draws its own"
    device = need.device.torch_name
    totals = [sum(counts) for counts in zip(*steps, strict=True)]
    qkv, sinks_H = draw(need, len(totals), longest, "cpu" if compared is None else device)
    stored = qkv
    if draw is not drawn:
        stored = [[q, *(as_stored(need, x) for x in rest)] for q, *rest in qkv]
        if need.latent_dim is not None:
            stored = [[q, k, k[..., : need.latent_dim]] for q, k, _ in stored]
    sinks = () if sinks_H is None else (sinks_H.to(device),)
    waves = drawn_waves(need, len(totals), longest, device)
    index = drawn_index(need, len(totals), longest, device)
    assert max(totals) <= longest, "no more tokens are drawn"
    tables = block_tables(len(totals), longest // block_size + 1)
    cache = {} if cache is None else cache
    spare = 1 + max(map(max, tables))
    cache |= KVCache.allocate([item.cache(need, block_size)], spare + 1, device).layers[0]
    for tensor in cache.values():
        if tensor.is_floating_point():
            tensor.fill_(50.0)  # left by an earlier sequence
            tensor[spare] = torch.nan  # where the tables of padding rows point
    attend = _filling(item, need) if filled else item.build(need)
    done = [0] * len(totals)
    for counts in steps:
        active = [i for i, count in enumerate(counts) if count]
        spans = [(done[i], done[i] + counts[i]) for i in active]
        q, k, v = (
            torch.cat([qkv[i][j][a:b] for i, (a, b) in zip(active, spans, strict=True)] or [x[:0]])
            for j, x in enumerate(qkv[0])
        )
        rows: list[int | None] = list(range(len(active)))
        if padding:
            rows = [None, *rows[:1], None, *rows[1:], None]
        batch = batch_of(rows, active, spans, [*tables, [spare] * longest], block_size, device)
        real_T = batch.slots_T >= 0
        q, k, v = (_among_padding(x, real_T.to(x.device)) for x in (q, k, v))
        if captured and len(real_T) == len(rows):
            bound = batch.blocks_SM.shape[1] * block_size
            batch = attrs.evolve(batch, captured=True, context_lens=[bound] * len(rows))
        if item.begin is not None:
            item.begin(need, batch)
        more: tuple[Any, ...] = sinks
        named: dict[str, Any] = {}
        if index is not None:
            brought = index_rows(
                index, [(i, a, b) for i, (a, b) in zip(active, spans, strict=True)]
            )
            named = {"indexed": Indexed(*(_among_padding(x, real_T.to(device)) for x in brought))}
        if waves is not None:
            current = waves_of(waves, [(i, a, b) for i, (a, b) in zip(active, spans, strict=True)])
            rows_THW = _among_padding(current.amplitudes_THW, real_T.to(device))
            more = (*(sinks or (None,)), attrs.evolve(current, amplitudes_THW=rows_THW))
        with torch.inference_mode():
            ours = attend(q.to(device), k.to(device), v.to(device), cache, batch, *more, **named)
        if filled:
            filled, done, attend = False, [*counts], item.build(need)
            continue
        if compared is None:
            firsts = [a for a, _ in spans]
            theirs = [
                naive(need, len(totals), i, totals[i])[a:b]
                for i, (a, b) in zip(active, spans, strict=True)
            ]
        else:
            firsts = [max(a, b - compared) for a, b in spans]
            theirs = [
                exact(
                    need,
                    stored[i],
                    sinks_H,
                    first,
                    b,
                    None if waves is None else waves[i],
                    None if index is None else index[i],
                )
                for i, first, (_, b) in zip(active, firsts, spans, strict=True)
            ]
        flags = [
            place >= first
            for first, (a, b) in zip(firsts, spans, strict=True)
            for place in range(a, b)
        ]
        for i in active:
            done[i] += counts[i]
        assert ours.isfinite().all(), "padding rows included"
        ours = ours[real_T][torch.tensor(flags, dtype=torch.bool, device=device)]
        yield ours, torch.cat(theirs or [ours[:0].double().cpu()])


def _filling(item: AttentionBackend, need: AttentionNeed) -> Attend:
    """Return attention that stores what this need stores, and computes as little as it can."""
    near = attrs.evolve(need, sliding_window=1)
    able = "sliding_window" in item.features and item.refuses(near) is None
    return item.build(near if able else need)


def _among_padding(x_NHC: Tensor, real_T: Tensor) -> Tensor:
    """Return the real rows of a step in their places, and large values in padding rows."""
    x_THC = x_NHC.new_full((len(real_T), *x_NHC.shape[1:]), 100.0)
    x_THC[real_T] = x_NHC
    return x_THC


def block_tables(num_sequences: int, num_blocks: int) -> list[list[int]]:
    """Return block tables in random order, as from a pool in use."""
    blocks = list(range(num_sequences * num_blocks))
    random.Random(0).shuffle(blocks)
    return [blocks[i::num_sequences] for i in range(num_sequences)]


def batch_of(
    rows: Sequence[int | None],
    active: Sequence[int],
    spans: Sequence[tuple[int, int]],
    tables: Sequence[Sequence[int]],
    block_size: int,
    device: str,
) -> Batch:
    """Return the step of these sequences, given as indices into `active` and `spans`. None is a
    padding row, with the last table."""
    positions, slots, counts = list[int](), list[int](), list[int]()
    for row in rows:
        first, stop = (0, 1) if row is None else spans[row]
        table = tables[-1 if row is None else active[row]]
        positions += range(first, stop)
        counts.append(stop - first)
        slots += [
            -1 if row is None else table[p // block_size] * block_size + p % block_size
            for p in range(first, stop)
        ]
    widest = max((-(-stop // block_size) for _, stop in spans), default=1)

    def tensor(values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    query_starts = [0, *itertools.accumulate(counts)]
    context_lens = [0 if row is None else spans[row][1] for row in rows]
    blocks = [list(tables[-1 if row is None else active[row]][:widest]) for row in rows]
    return Batch(
        token_ids_T=tensor([0] * len(positions)),
        positions_T=tensor(positions),
        slots_T=tensor(slots),
        query_starts=query_starts,
        context_lens=context_lens,
        blocks_SM=tensor(blocks),
        block_size=block_size,
        query_starts_S1=tensor(query_starts, torch.int32),
        context_lens_S=tensor(context_lens, torch.int32),
    )
