"""A step's keys and values, gathered from the blocks of a paged cache whose tokens are contiguous:
for attention written in torch.

Suffixes: K key/value heads, S sequences, L keys (padded context), Q queries of a sequence, N rows
of the cache (slots x key/value heads).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attrs import frozen
from torch import Tensor

from inferno.contracts import AttentionSpec
from inferno.nn.batch import Batch
from inferno.nn.stored import may_pad

_MAX_ELEMENTS = 1 << 24
"""Most scores, or gathered key elements, in memory at once: long prompts and large batches are
split."""


Index = Tensor | slice


@frozen(eq=False)
class Part:
    """Queries that are computed together: one of each of several sequences, or several of one."""

    tokens: Index
    """Of the S · Q queries in T."""
    rows_N: Tensor
    """Rows of their keys in the flat cache, S x K x L."""
    hidden_SQL: Tensor
    """True where a query must not attend."""
    padding_S: Tensor | None
    """True for padding rows, if there may be any."""


def parts(need: AttentionSpec, batch: Batch, device: torch.device) -> Iterator[Part]:
    """Split the step's queries into parts of bounded size: single queries by padded context,
    prompts one by one. Shapes follow the lengths on the host, values those on the device."""
    singles: dict[int, list[int]] = {}
    for i, context in enumerate(batch.context_lens):
        first, stop = batch.query_starts[i], batch.query_starts[i + 1]
        if stop - first == 1:
            singles.setdefault(_padded(_span(need, context, 1)), []).append(i)
            continue
        run = max(1, _MAX_ELEMENTS // (need.num_heads * _padded(context)))
        for begin in range(first, stop, run):
            end = min(begin + run, stop)
            reach = context - (stop - end)  # tokens up to the last query of this run
            length = _padded(_span(need, reach, end - begin))
            yield _part(need, batch, slice(i, i + 1), slice(begin, end), stop - end, length)
    for length, members in singles.items():
        size = max(1, _MAX_ELEMENTS // max(1, length * need.num_kv_heads * need.head_dim))
        for begin in range(0, len(members), size):
            group = members[begin : begin + size]
            tokens = _index([batch.query_starts[i] for i in group], device)
            yield _part(need, batch, _index(group, device), tokens, 0, length)


def _index(numbers: list[int], device: torch.device) -> Index:
    """A slice if they follow each other: it takes no values from the host."""
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return slice(numbers[0], numbers[-1] + 1)
    return torch.tensor(numbers, device=device)


def _span(need: AttentionSpec, reach: int, queries: int) -> int:
    """Return how many keys the last `queries` queries before `reach` attend to."""
    return reach if need.sliding_window is None else min(reach, need.sliding_window + queries - 1)


def _padded(length: int) -> int:
    """Round a length up to one of few values: matrix libraries prepare and cache a kernel for each
    shape."""
    step = max(32, 1 << (length - 1).bit_length() >> 3)
    return -(-length // step) * step


def _part(
    need: AttentionSpec, batch: Batch, members: Index, tokens: Index, later: int, length: int
) -> Part:
    """`later` is the number of tokens that the sequence has after these."""
    B, K = batch.block_size, need.num_kv_heads
    reach_S1 = batch.context_lens_S[members][:, None].long() - later
    positions_SQ = batch.positions_T[tokens].view(len(reach_S1), -1)
    start_S1 = (reach_S1 - length).clamp_min(0)
    # Padding reads the sequence's own newest token, masked: never another sequence's values.
    context_SL = start_S1 + torch.arange(length, device=start_S1.device)
    hidden_SQL = context_SL[:, None] > positions_SQ[:, :, None]
    if need.sliding_window is not None:
        hidden_SQL |= context_SL[:, None] <= positions_SQ[:, :, None] - need.sliding_window
    known_SL = torch.minimum(context_SL, (reach_S1 - 1).clamp_min(0))
    blocks_SL = batch.blocks_SM[members].gather(1, known_SL // B)
    slots_SL = blocks_SL * B + known_SL % B
    rows_SKL = slots_SL[:, None] * K + torch.arange(K, device=start_S1.device)[:, None]
    padding_S = reach_S1[:, 0] == 0 if may_pad(batch) else None
    return Part(tokens, rows_SKL.flatten(), hidden_SQL, padding_S)
