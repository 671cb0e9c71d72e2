"""Paged attention in plain torch: the reference every backend is held against.

Suffixes: T packed tokens, H query heads, K key/value heads, G query heads per key/value head, C head dim, S sequences,
L tokens of context, Q queries of one sequence, N cache slots (blocks x block size).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from inferno.batch import Batch
from inferno.contracts import AttentionNeed

_MAX_SCORES = 1 << 24
"""Scores held at once: long prompts are taken in runs of queries, so that memory stays bounded."""


@frozen
class TorchAttend:
    """One layer's attention. Query heads that share a key/value head are folded into the query length, so that each key is
    read once."""

    need: AttentionNeed

    def __call__(
        self, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, cache: Mapping[str, Tensor], batch: Batch
    ) -> Tensor:
        k_NKC, v_NKC = cache["k"].flatten(0, 1), cache["v"].flatten(0, 1)
        k_NKC.index_copy_(0, batch.slots_T, k_TKC)
        v_NKC.index_copy_(0, batch.slots_T, v_TKC)
        out_THC = torch.empty_like(q_THC)
        offsets_B = torch.arange(batch.block_size, device=q_THC.device)
        for i, context_len in enumerate(batch.context_lens):
            rows = slice(batch.query_starts[i], batch.query_starts[i + 1])
            num_queries = rows.stop - rows.start
            num_blocks = -(-context_len // batch.block_size)
            first = self._first_needed(context_len - num_queries) // batch.block_size
            blocks_M = batch.blocks_SM[i, first:num_blocks]
            slots_L = (blocks_M[:, None] * batch.block_size + offsets_B).flatten()
            start = first * batch.block_size
            slots_L = slots_L[: context_len - start]
            keys, values = k_NKC.index_select(0, slots_L), v_NKC.index_select(0, slots_L)
            run = max(1, _MAX_SCORES // (self.need.num_heads * len(slots_L)))
            for begin in range(rows.start, rows.stop, run):
                part = slice(begin, min(begin + run, rows.stop))
                positions_Q = batch.positions_T[part]
                out_THC[part] = self._attend(q_THC[part], keys, values, positions_Q, start)
        return out_THC

    def _first_needed(self, first_position: int) -> int:
        """The oldest token that a query at `first_position` attends to."""
        window = self.need.sliding_window
        return 0 if window is None else max(0, first_position - window + 1)

    def _attend(self, q_QHC: Tensor, k_LKC: Tensor, v_LKC: Tensor, positions_Q: Tensor, start: int) -> Tensor:
        Q, H, C = q_QHC.shape
        K = k_LKC.shape[1]
        q_KXC = q_QHC.view(Q, K, H // K, C).permute(1, 0, 2, 3).reshape(K, -1, C)  # X = Q x G
        scores_KXL = torch.bmm(q_KXC, k_LKC.permute(1, 2, 0)).float() * self.need.scale
        if (cap := self.need.soft_cap) is not None:
            scores_KXL = cap * torch.tanh(scores_KXL / cap)
        if Q > 1 or self.need.sliding_window is not None:
            context_L = torch.arange(start, start + len(k_LKC), device=q_QHC.device)
            hidden_QL = context_L > positions_Q[:, None]
            if self.need.sliding_window is not None:
                hidden_QL |= context_L <= positions_Q[:, None] - self.need.sliding_window
            scores_KXL.view(K, Q, -1, len(k_LKC)).masked_fill_(hidden_QL[None, :, None], float("-inf"))
        weights_KXL = torch.softmax(scores_KXL, -1).to(v_LKC.dtype)
        out_KXC = torch.bmm(weights_KXL, v_LKC.transpose(0, 1))
        return out_KXC.view(K, Q, H // K, C).permute(1, 0, 2, 3).reshape(Q, H, C)
