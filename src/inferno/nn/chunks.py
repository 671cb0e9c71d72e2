"""Chunked attention: a token attends to its chunk of the sequence, up to itself.

A step is cut where chunks begin, and backends are given each piece as a sequence that begins with
its chunk. Keys are rotated before they are stored, so a backend need not know where in the sequence
a query is: any backend can do that, with the kernels and the caches that it has.

Suffixes: T packed tokens, S sequences, M blocks.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from attrs import evolve
from torch import Tensor

from inferno.nn.batch import Batch


def in_chunks(batch: Batch, chunk: int) -> Batch:
    """Return the step of one cache group as it is given to layers that attend to chunks of `chunk`
    tokens, a multiple of the block size. It is made once and shared by these layers. A step without
    longer contexts is returned as it is."""
    if max(batch.context_lens, default=0) <= chunk:
        return batch
    key = in_chunks, chunk
    if key not in batch.scratch:
        assert chunk % batch.block_size == 0, "the plan has chosen the block size"
        batch.scratch[key] = (_captured if batch.captured else _cut)(batch, chunk)
    chunked: Batch = batch.scratch[key]
    return chunked


def _cut(batch: Batch, chunk: int) -> Batch:
    starts, lens, rows, firsts = [0], list[int](), list[int](), list[int]()
    slices = zip(batch.context_lens, pairwise(batch.query_starts), strict=True)
    for row, (context, (begin, end)) in enumerate(slices):
        place = max(0, context - (end - begin))  # 0 in a padding row
        while begin < end:
            offset = place % chunk
            count = min(end - begin, chunk - offset)
            begin, place = begin + count, place + count
            starts.append(begin)
            lens.append(min(context, offset + count))
            rows.append(row)
            firsts.append((place - offset - count) // batch.block_size)
    device = batch.blocks_SM.device
    rows_S, firsts_S, lens_S = torch.tensor([rows, firsts, lens], device=device)
    width = -(-max(lens) // batch.block_size)
    return evolve(
        batch,
        positions_T=batch.positions_T % chunk,
        query_starts=starts,
        context_lens=lens,
        blocks_SM=_tables(batch.blocks_SM[rows_S], firsts_S, width),
        query_starts_S1=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens_S=lens_S.int(),
        state_slots_S=None,
        follows=(),
        scratch={},
        groups=(),
    )


def _captured(batch: Batch, chunk: int) -> Batch:
    """The same of a captured step, whose lengths are known to its tensors only."""
    assert len(batch.context_lens) == len(batch.token_ids_T), "each sequence has one token"
    firsts_S = (batch.context_lens_S - 1).clamp_min(0) // chunk * chunk
    width = min(batch.blocks_SM.shape[1], chunk // batch.block_size)
    return evolve(
        batch,
        positions_T=batch.positions_T % chunk,
        context_lens=[min(context, chunk) for context in batch.context_lens],
        blocks_SM=_tables(batch.blocks_SM, (firsts_S // batch.block_size).long(), width),
        context_lens_S=batch.context_lens_S - firsts_S,
        state_slots_S=None,
        follows=(),
        scratch={},
        groups=(),
    )


def _tables(blocks_SM: Tensor, firsts_S: Tensor, width: int) -> Tensor:
    """Return `width` entries of each table, from that in `firsts_S` on. Past a table's end,
    its last one is repeated."""
    entries_M = torch.arange(width, device=blocks_SM.device)
    return blocks_SM.gather(1, (firsts_S[:, None] + entries_M).clamp_max(blocks_SM.shape[1] - 1))
