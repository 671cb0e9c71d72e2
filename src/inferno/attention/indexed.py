"""The positions that an index finds for the queries of a step (`contracts.IndexSpec`), in torch.

Suffixes: T packed tokens, S sequences, Q queries of a sequence, J heads of the index, C their dim,
K key/value heads, L keys (padded context), N positions that are found.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve
from torch import Tensor

from inferno.attention.part import Part
from inferno.contracts import AttentionNeed, Indexed
from inferno.ops.rows import products, row_products

_APART = 8
"""Each query of a prompt gathers its own keys if there are at least this many times as many keys as
are found. With fewer it is cheaper to compute all of them and to mask the others."""


def narrowed(part: Part, need: AttentionNeed, indexed: Indexed, keys_BP1C: Tensor) -> Part:
    """Return the part with the positions that the index does not find left out, or masked. Where
    it finds all, the part is returned as it is. If the need is batch-invariant, that is so too
    where only the padding of longer sequences exceeds what the index finds: alone, the part would
    be returned as it is."""
    assert need.index is not None, "the need has an index"
    S, Q, L = part.hidden_SQL.shape
    count, K = need.index.top_k, need.num_kv_heads
    if L <= count or indexed.q_TJC is None or indexed.weights_TJ is None:
        return part
    if need.batch_invariant and int((~part.hidden_SQL).sum()) <= count:
        return part
    slots_SL = part.rows_N.view(S, K, L)[:, 0] // K
    k_SLC = keys_BP1C.flatten(0, 2).index_select(0, slots_SL.flatten()).view(S, L, -1)
    q_SQJC = indexed.q_TJC[part.tokens].unflatten(0, (S, Q))
    weights_SQJ = indexed.weights_TJ[part.tokens].unflatten(0, (S, Q))
    product = row_products if need.batch_invariant else products
    scores_SQL = _scores(q_SQJC, weights_SQJ, k_SLC, product)
    found_SQL = highest(scores_SQL.masked_fill_(part.hidden_SQL, float("-inf")), count)
    if Q > 1 and L < _APART * count:
        return evolve(part, hidden_SQL=part.hidden_SQL | ~found_SQL)
    places_SQN = _places(found_SQL, count)
    rows_SQKL = part.rows_N.view(S, 1, K, L).expand(S, Q, K, L)
    rows_SQKN = rows_SQKL.gather(-1, places_SQN[:, :, None].expand(S, Q, K, count))
    hidden_SQN = part.hidden_SQL.gather(-1, places_SQN)
    padding_S = part.padding_S
    return Part(
        part.tokens,
        rows_SQKN.flatten(),
        hidden_SQN.view(S * Q, 1, count),
        None if padding_S is None else padding_S[:, None].expand(S, Q).flatten(),
    )


def _scores(
    q_SQJC: Tensor,
    weights_SQJ: Tensor,
    k_SLC: Tensor,
    product: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return every position's score for every query, float32."""
    S, Q, J, _ = q_SQJC.shape
    products_XJL = product(q_SQJC.flatten(1, 2).float(), k_SLC.float()).relu_().view(S * Q, J, -1)
    weighted = product(weights_SQJ.reshape(S * Q, 1, J), products_XJL.transpose(1, 2))
    return weighted.view(S, Q, -1)


def highest(scores_SQL: Tensor, count: int) -> Tensor:
    """Return whether each score is one of the `count` highest of its query; ties go to the
    earlier position. torch's `topk` does not say how it breaks them."""
    least_SQ1 = scores_SQL.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above_SQL, equal_SQL = scores_SQL > least_SQ1, scores_SQL == least_SQ1
    room_SQ1 = count - above_SQL.sum(-1, keepdim=True)
    return above_SQL | (equal_SQL & (equal_SQL.cumsum(-1) <= room_SQ1))


def _places(found_SQL: Tensor, count: int) -> Tensor:
    """Return which `count` of the L keys are found, in ascending order."""
    order_SQL = torch.where(found_SQL, found_SQL.cumsum(-1) - 1, count)
    places_L = torch.arange(found_SQL.shape[-1], device=found_SQL.device).expand_as(order_SQL)
    places = torch.zeros(
        (*found_SQL.shape[:-1], count + 1), dtype=torch.int64, device=found_SQL.device
    )
    return places.scatter_(-1, order_SQL, places_L)[..., :count]
