"""Paged attention in plain torch: the reference that every backend is tested against.

It is computed in float32, and rounded once, to the compute type. torch's products sum in an order
that depends on their shape: beside other neighbours or in other chunks, a token's result differs by
float32's rounding, which is what this backend promises. A native one promises the bits. If a need
asks for them, each token is computed alone, and sums are torch's sums of rows, whose order depends
on the row's length only: slower by far.

Suffixes: T packed tokens, H query heads, K key/value heads, G query heads per key/value head, C
head dim, V value dim, S sequences, L keys (padded context), Q queries of a sequence, X of all
sequences and key/value heads, Y of all queries and query heads of one.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from inferno.attention.gathered import GatheredAttend
from inferno.attention.part import Part
from inferno.ops.rows import products, row_products


@frozen
class TorchAttend(GatheredAttend):
    """One layer's attention."""

    def part(
        self, q_THC: Tensor, k_SKLC: Tensor, v_SKLV: Tensor, part: Part, sinks_H: Tensor | None
    ) -> Tensor:
        """Compute attention in float32, with query heads that share a key/value head folded into
        the query length, so that each key is read once."""
        S, Q, L = part.hidden_SQL.shape
        K, C = k_SKLC.shape[1], k_SKLC.shape[3]
        G = q_THC.shape[1] // K
        q_XYC = q_THC.view(S, Q, K, G, C).permute(0, 2, 1, 3, 4).reshape(S * K, Q * G, C)
        q_XYC, k_XLC = q_XYC.float() * self.need.scale, k_SKLC.flatten(0, 1)
        product = row_products if self.need.batch_invariant else products
        scores = product(q_XYC, k_XLC.float()).view(S, K, Q, G, L)
        if (cap := self.need.soft_cap) is not None:
            scores = cap * torch.tanh(scores / cap)
        scores.masked_fill_(part.hidden_SQL[:, None, :, None], float("-inf"))
        if sinks_H is not None:
            sinks = sinks_H.float().view(1, K, 1, G, 1).expand(S, K, Q, G, 1)
            scores = torch.cat([scores, sinks], -1)
        weights_XYL = torch.softmax(scores, -1)[..., :L].reshape(S * K, Q * G, L)
        v_XVL = v_SKLV.flatten(0, 1).float().transpose(1, 2)
        out = product(weights_XYL, v_XVL).view(S, K, Q, G, -1)
        if part.padding_S is not None:
            out.masked_fill_(part.padding_S[:, None, None, None, None], 0.0)
        return out.to(q_THC.dtype).permute(0, 2, 1, 3, 4).reshape(S * Q, K * G, -1)
