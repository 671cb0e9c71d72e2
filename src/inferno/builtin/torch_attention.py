"""Paged attention in plain torch: the reference that every backend is tested against.

Suffixes: T packed tokens, H query heads, K key/value heads, G query heads per key/value head, C
head dim, V value dim, S sequences, L keys (padded context), Q queries of a sequence, N rows of the
cache (slots x key/value heads).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from inferno.contracts import AttentionNeed
from inferno.nn.batch import Batch
from inferno.nn.gathered import Part, parts
from inferno.nn.stored import Stored


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
        stored = _stored(batch)
        stored.store(keys, k_TKC)
        if self.need.latent_dim is None:
            values = cache["v"]
            stored.store(values, v_TKC)
        key = (TorchAttend, self.need)
        if key not in batch.scratch:  # shared by all layers with this need
            batch.scratch[key] = list(parts(self.need, batch, q_THC.device))
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


def _stored(batch: Batch) -> Stored:
    if Stored not in batch.scratch:  # shared by all layers
        batch.scratch[Stored] = Stored.of(batch)
    stored: Stored = batch.scratch[Stored]
    return stored
