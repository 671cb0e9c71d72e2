"""The best tokens that grammars allow.

Suffixes: B rows drawn together, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from inferno.constraints import Masks
from inferno.constraints.rules import allowed_ids
from inferno.nn.masses import UNDECIDED


def best_allowed(
    argmax: Callable[[Tensor], Tensor],
    x_BV: Tensor,
    places: Sequence[tuple[int, int]],
    masks: Masks,
) -> Tensor:
    """Return each row's best token that its mask, if it has one, allows, (B,), or UNDECIDED.
    `places` are the rows of `masks`, each with the number of drafts before it.

    The best of all is mostly allowed, and then no mask is computed or looked at."""
    ids_B = argmax(x_BV)
    if not masks:
        return ids_B
    again = [
        i
        for i, (token_id, place) in enumerate(zip(ids_B.tolist(), places, strict=True))
        if token_id != UNDECIDED and not masks.allows(place[0], token_id, place[1])
    ]
    masks.fill({places[i][0] for i in again})  # together
    for i in again:
        ids = allowed_ids(masks.of(*places[i]), x_BV.shape[1])
        ids_B[i] = UNDECIDED
        if len(ids):  # to look at these alone takes half the time of a masked copy of all
            ids_K = torch.from_numpy(ids).to(x_BV.device)
            index = int(argmax(x_BV[i, ids_K][None]))
            ids_B[i] = UNDECIDED if index == UNDECIDED else ids[index].item()
    return ids_B
