"""Paged attention in plain torch: the reference that every backend is tested against.

Suffixes: T packed tokens, H query heads, K key/value heads, G query heads per key/value head, C
head dim, V value dim, S sequences, L keys (padded context), Q queries of a sequence, P slots of the
cache, N rows of it (slots x key/value heads).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from attrs import frozen
from torch import Tensor

from inferno.contracts import AttentionNeed
from inferno.nn.batch import Batch

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


@frozen(eq=False)
class Stored:
    """Where a step with padding rows stores its tokens. They write what another token writes; if
    there is no other, what is there already."""

    token_T: Tensor
    """The token that each token writes: itself, or the one with the highest slot."""
    slots_T: Tensor
    nothing: Tensor
    """Whether all rows are padding."""

    @classmethod
    def of(cls, slots_T: Tensor) -> Stored:
        own_T = torch.arange(len(slots_T), device=slots_T.device)
        token_T = torch.where(slots_T < 0, slots_T.argmax(), own_T)
        return cls(token_T, slots_T[token_T].clamp_min(0), slots_T.amax() < 0)

    def store(self, cache_PKC: Tensor, x_TKC: Tensor) -> None:
        x_TKC = torch.where(self.nothing, cache_PKC[self.slots_T], x_TKC[self.token_T])
        cache_PKC.index_copy_(0, self.slots_T, x_TKC)


@frozen
class TorchAttend:
    """One layer's attention."""

    need: AttentionNeed

    def __call__(
        self,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        keys = values = cache["k"]
        _store(keys, k_TKC, batch)
        if self.need.latent_dim is None:
            values = cache["v"]
            _store(values, v_TKC, batch)
        key = (TorchAttend, self.need)
        if key not in batch.scratch:  # shared by all layers with this need
            batch.scratch[key] = list(_parts(self.need, batch, q_THC.device))
        out_THV = q_THC.new_empty((*q_THC.shape[:2], self.need.output_dim))
        for part in batch.scratch[key]:
            out_THV[part.tokens] = self._attend(q_THC[part.tokens], keys, values, part, sinks_H)
        return out_THV

    def _attend(
        self, q_THC: Tensor, keys: Tensor, values: Tensor, part: Part, sinks_H: Tensor | None
    ) -> Tensor:
        """Compute attention with query heads that share a key/value head folded into the query
        length, so that each key is read once."""
        S, Q, L = part.hidden_SQL.shape
        K, C = keys.shape[-2:]
        G = q_THC.shape[1] // K
        k_XLC = keys.reshape(-1, C).index_select(0, part.rows_N).view(S * K, L, C)
        if values is keys:
            v_XLV = k_XLC[..., : self.need.latent_dim]
        else:
            V = values.shape[-1]
            v_XLV = values.reshape(-1, V).index_select(0, part.rows_N).view(S * K, L, V)
        q_XYC = q_THC.view(S, Q, K, G, C).permute(0, 2, 1, 3, 4).reshape(S * K, Q * G, C)
        scores = (
            torch.bmm(q_XYC, k_XLC.transpose(1, 2))
            .float()
            .mul_(self.need.scale)
            .view(S, K, Q, G, L)
        )
        if (cap := self.need.soft_cap) is not None:
            scores = cap * torch.tanh(scores / cap)
        scores.masked_fill_(part.hidden_SQL[:, None, :, None], float("-inf"))
        if sinks_H is not None:
            sinks = sinks_H.float().view(1, K, 1, G, 1).expand(S, K, Q, G, 1)
            scores = torch.cat([scores, sinks], -1)
        weights_XYL = torch.softmax(scores, -1)[..., :L].to(v_XLV.dtype).reshape(S * K, Q * G, L)
        out = torch.bmm(weights_XYL, v_XLV).view(S, K, Q, G, -1)
        if part.padding_S is not None:
            out.masked_fill_(part.padding_S[:, None, None, None, None], 0.0)
        return out.permute(0, 2, 1, 3, 4).reshape(S * Q, K * G, -1)


def _may_pad(batch: Batch) -> bool:
    return batch.captured or 0 in batch.context_lens


def _store(cache: Tensor, x_TKC: Tensor, batch: Batch) -> None:
    cache_PKC = cache.flatten(0, 1)
    if Stored not in batch.scratch:  # shared by all layers
        batch.scratch[Stored] = Stored.of(batch.slots_T) if _may_pad(batch) else None
    if (stored := batch.scratch[Stored]) is None:
        cache_PKC.index_copy_(0, batch.slots_T, x_TKC)
    else:
        stored.store(cache_PKC, x_TKC)


def _parts(need: AttentionNeed, batch: Batch, device: torch.device) -> Iterator[Part]:
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


def _span(need: AttentionNeed, reach: int, queries: int) -> int:
    """Return how many keys the last `queries` queries before `reach` attend to."""
    return reach if need.sliding_window is None else min(reach, need.sliding_window + queries - 1)


def _padded(length: int) -> int:
    """Round a length up to one of few values: matrix libraries prepare and cache a kernel for each
    shape."""
    step = max(32, 1 << (length - 1).bit_length() >> 3)
    return -(-length // step) * step


def _part(
    need: AttentionNeed, batch: Batch, members: Index, tokens: Index, later: int, length: int
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
    padding_S = reach_S1[:, 0] == 0 if _may_pad(batch) else None
    return Part(tokens, rows_SKL.flatten(), hidden_SQL, padding_S)
