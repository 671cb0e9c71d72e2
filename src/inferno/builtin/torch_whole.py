"""Bidirectional attention in torch, of whole sequences: by torch's fused kernel, in the compute
type, without padding. Sequences of the same length are one call; each is computed alike whatever
its neighbours are.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, S sequences of a group, L
their length, Q queries, N keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from inferno.builtin.torch_attention import TorchAttend
from inferno.contracts import Attend, AttentionNeed, Waves
from inferno.nn.batch import Batch

_QUERIES = 256
"""Queries of a windowed layer that are computed together: they need only the keys around them."""

Tokens = Tensor | slice


def attend_of(need: AttentionNeed) -> Attend:
    """Return a layer's attention."""
    return WholeAttend(need) if need.bidirectional else TorchAttend(need)


@frozen
class WholeAttend:
    """One layer's attention. The step has all tokens of its sequences."""

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
    ) -> Tensor:
        if WholeAttend not in batch.scratch:  # shared by all layers
            batch.scratch[WholeAttend] = groups_of(batch, q_THC.device)
        out_THV = q_THC.new_empty((*q_THC.shape[:2], self.need.output_dim))
        for tokens, length in batch.scratch[WholeAttend]:
            q_SHLC, k_SKLC, v_SKLV = (
                x[tokens].unflatten(0, (-1, length)).transpose(1, 2) for x in (q_THC, k_TKC, v_TKC)
            )
            out_SHLV = self._attended(q_SHLC, k_SKLC, v_SKLV)
            out_THV[tokens] = out_SHLV.transpose(1, 2).flatten(0, 1)
        return out_THV

    def _attended(self, q_SHLC: Tensor, k_SKLC: Tensor, v_SKLV: Tensor) -> Tensor:
        window, length = self.need.sliding_window, q_SHLC.shape[2]
        if window is None or window >= length:
            return self._product(q_SHLC, k_SKLC, v_SKLV)
        parts = []
        for begin in range(0, length, _QUERIES):
            end = min(begin + _QUERIES, length)
            first, stop = max(0, begin - window + 1), min(length, end + window - 1)
            queries_Q1 = torch.arange(begin, end, device=q_SHLC.device)[:, None]
            keys_N = torch.arange(first, stop, device=q_SHLC.device)
            near_QN = (queries_Q1 - keys_N).abs() < window
            k_SKNC, v_SKNV = (x[:, :, first:stop] for x in (k_SKLC, v_SKLV))
            parts.append(self._product(q_SHLC[:, :, begin:end], k_SKNC, v_SKNV, near_QN))
        return torch.cat(parts, 2)

    def _product(
        self, q_SHQC: Tensor, k_SKNC: Tensor, v_SKNV: Tensor, near_QN: Tensor | None = None
    ) -> Tensor:
        grouped = q_SHQC.shape[1] != k_SKNC.shape[1]
        return F.scaled_dot_product_attention(
            q_SHQC, k_SKNC, v_SKNV, near_QN, scale=self.need.scale, enable_gqa=grouped
        )


def groups_of(batch: Batch, device: torch.device) -> list[tuple[Tokens, int]]:
    """Return the tokens of the sequences of each length: a slice where they follow each other, so
    that nothing is copied."""
    starts = defaultdict[int, list[int]](list)
    for first, stop in zip(batch.query_starts, batch.query_starts[1:], strict=False):
        starts[stop - first].append(first)
    groups: list[tuple[Tokens, int]] = []
    for length, firsts in starts.items():
        size = length * len(firsts)
        if firsts[-1] - firsts[0] == size - length:
            groups.append((slice(firsts[0], firsts[0] + size), length))
        else:
            firsts_S1 = torch.tensor(firsts, device=device)[:, None]
            groups.append(((firsts_S1 + torch.arange(length, device=device)).flatten(), length))
    return groups
