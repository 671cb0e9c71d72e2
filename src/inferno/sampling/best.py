"""The best tokens that grammars allow.

Suffixes: B rows drawn together, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from inferno.constraints import Masks
from inferno.constraints.rules import allowed_ids
from inferno.ops.masses import UNDECIDED

_NEXT_BEST = 3
"""How many tokens are asked for after the best one. Each takes a fifth of a mask and its use."""


def best_allowed(
    argmax: Callable[[Tensor], Tensor],
    x_BV: Tensor,
    places: Sequence[tuple[int, int]],
    masks: Masks,
) -> Tensor:
    """Return each row's best token that its mask, if it has one, allows, (B,), or UNDECIDED.
    `places` are the rows of `masks`, each with the number of drafts before it.

    The best of all is mostly allowed, else one of the next few; only then a mask is needed."""
    ids_B = argmax(x_BV)
    if not masks:
        return ids_B
    refused = list[int]()
    for i, (best, place) in enumerate(zip(ids_B.tolist(), places, strict=True)):
        if best == UNDECIDED or (allowed := masks.allows(place[0], best, place[1])):
            continue
        token_id = UNDECIDED if allowed is None else _next_best(argmax, x_BV[i], best, place, masks)
        ids_B[i] = token_id
        if token_id == UNDECIDED:
            refused.append(i)
    masks.fill({places[i][0] for i in refused})  # together
    for i in refused:
        ids = allowed_ids(masks.of(*places[i]), x_BV.shape[1])
        if len(ids):  # to look at these alone takes half the time of a masked copy of all
            ids_K = torch.from_numpy(ids).to(x_BV.device)
            index = int(argmax(x_BV[i, ids_K][None]))
            ids_B[i] = UNDECIDED if index == UNDECIDED else ids[index].item()
    return ids_B


def _next_best(
    argmax: Callable[[Tensor], Tensor], x_V: Tensor, best: int, place: tuple[int, int], masks: Masks
) -> int:
    """Return the best token that is allowed, if it is one of the next few after the `best`, which
    is not; else UNDECIDED."""
    x_1V = x_V[None].clone()
    for _ in range(_NEXT_BEST):
        x_1V[0, best] = -math.inf
        best = int(argmax(x_1V))
        if best == UNDECIDED or (allowed := masks.allows(place[0], best, place[1])) is None:
            return UNDECIDED
        if allowed:
            return best
    return UNDECIDED
