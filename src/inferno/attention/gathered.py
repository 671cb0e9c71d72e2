"""A step's keys and values, gathered from the blocks of a paged cache whose tokens are contiguous:
for attention written in torch.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, V value dim, S sequences, L
keys (padded context), Q queries of a sequence, N rows of the cache (slots x key/value heads).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from inferno.attention.indexed import narrowed
from inferno.attention.part import Index, Part
from inferno.attention.stored import Stored, may_pad
from inferno.contracts import AttentionNeed, AttentionSpec, Indexed, Waves
from inferno.nn.batch import Batch

_MAX_ELEMENTS = 1 << 24
"""Most scores, or gathered key elements, in memory at once: long prompts and large batches are
split."""


@frozen
class GatheredAttend:
    """A layer's attention over gathered keys and values. Subclasses compute one part of a step."""

    need: AttentionNeed

    def __call__(
        self,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
        sinks_H: Tensor | None = None,
        waves: Waves | None = None,
        indexed: Indexed | None = None,
    ) -> Tensor:
        assert waves is None, "backends that store what was computed do not list them"
        stored = Stored.shared(batch)
        stored.store_vectors(cache, "k", k_TKC)
        if self.need.latent_dim is None:
            stored.store_vectors(cache, "v", v_TKC)
        key = (GatheredAttend, self.need)
        if key not in batch.scratch:  # shared by all layers with this need
            split = single_tokens if self.need.batch_invariant else parts
            batch.scratch[key] = list(split(self.need, batch, q_THC.device))
        pieces: Sequence[Part] = batch.scratch[key]
        if self.need.index is not None:
            if indexed is not None:
                keys = cache["index_k"]
                stored.store(keys, indexed.k_TC[:, None])
                batch.scratch[narrowed] = [narrowed(p, self.need, indexed, keys) for p in pieces]
            pieces = batch.scratch[narrowed]  # those of an earlier layer, where the index is shared
        out_THV = q_THC.new_empty((*q_THC.shape[:2], self.need.output_dim))
        for part in pieces:
            k_SKLC = part.gather(cache, "k")
            if self.need.latent_dim is None:
                v_SKLV = part.gather(cache, "v")
            else:
                v_SKLV = k_SKLC[..., : self.need.latent_dim]
            out_THV[part.tokens] = self.part(q_THC[part.tokens], k_SKLC, v_SKLV, part, sinks_H)
        return out_THV

    def part(
        self, q_THC: Tensor, k_SKLC: Tensor, v_SKLV: Tensor, part: Part, sinks_H: Tensor | None
    ) -> Tensor:
        """Return the attention of a part's queries, (S · Q, H, V)."""
        raise NotImplementedError


def parts(need: AttentionSpec, batch: Batch, device: torch.device) -> Iterator[Part]:
    """Split the step's queries into parts of bounded size: single queries by padded context,
    prompts one by one. Shapes follow the lengths on the host, values those on the device."""
    singles: dict[int, list[int]] = {}
    heads = max(need.num_heads, 0 if need.index is None else need.index.num_heads)
    for i, context in enumerate(batch.context_lens):
        first, stop = batch.query_starts[i], batch.query_starts[i + 1]
        if stop - first == 1:
            singles.setdefault(_padded(_span(need, context, 1)), []).append(i)
            continue
        run = max(1, _MAX_ELEMENTS // (heads * _padded(context)))
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


def single_tokens(need: AttentionSpec, batch: Batch, device: torch.device) -> Iterator[Part]:
    """Split the step into its tokens: the shapes of each follow from its position alone."""
    for i, context in enumerate(batch.context_lens):
        first, stop = batch.query_starts[i], batch.query_starts[i + 1]
        for token in range(first, stop):
            later = stop - token - 1
            length = _padded(_span(need, context - later, 1))
            yield _part(need, batch, slice(i, i + 1), slice(token, token + 1), later, length)


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
