"""Draws from a few candidates, the best tokens in order, with integer probabilities (`ops.masses`).

Suffixes: B rows drawn together, V vocabulary, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from inferno.ops.masses import (
    UNDECIDED,
    UNIT,
    first_beyond,
    floor_share,
    relative_probabilities,
)


@frozen(eq=False)
class Cut:
    """Which tokens are kept for a draw from the best ones."""

    top_k_B: Tensor
    top_p_B: Tensor
    """A probability times 2**31."""
    temperature_B1: Tensor
    min_p_B1: Tensor

    def of(self, rows: list[int]) -> Cut:
        """Return that of some rows."""
        each = self.top_k_B, self.top_p_B, self.temperature_B1, self.min_p_B1
        return Cut(*(tensor[rows] for tensor in each))


def index_of(positions: Sequence[int], device: torch.device) -> slice | Tensor:
    """Return an index of ascending positions: a slice, which copies nothing, if there is no gap."""
    if positions[-1] - positions[0] + 1 == len(positions):
        return slice(positions[0], positions[-1] + 1)
    return torch.tensor(positions, device=device)


def sort_best(x_BV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values and their ids, best first, equal ones by id.

    Which tokens tied at the last value are included is undefined, unless `count` covers the
    vocabulary.
    """
    if count >= x_BV.shape[1]:
        best_BK, ids_BK = x_BV.sort(dim=-1, descending=True, stable=True)
        return best_BK, ids_BK
    best_BK, ids_BK = x_BV.topk(count)
    ids_BK, order_BK = ids_BK.sort(-1)
    best_BK, order_BK = best_BK.gather(-1, order_BK).sort(dim=-1, descending=True, stable=True)
    return best_BK, ids_BK.gather(-1, order_BK)


def truncate(best_BK: Tensor, total_B: Tensor | None, cut: Cut) -> Tensor:
    """Return the masses of the candidates, 0 for those that `top_k`, then `top_p` (of the rest),
    then `min_p` cut off. What is kept is a prefix.

    `top_p` is a share of `total_B`; None: of the mass that `top_k` keeps.
    """
    p_BK = relative_probabilities(best_BK, best_BK[:, :1], cut.temperature_B1)
    mass_BK = (p_BK * UNIT).long()
    rank_K = torch.arange(best_BK.shape[1], device=best_BK.device)
    mass_BK.masked_fill_(rank_K >= cut.top_k_B[:, None], 0)
    sum_BK = mass_BK.cumsum(-1)
    total_B = sum_BK[:, -1] if total_B is None else total_B
    enough_B = floor_share(cut.top_p_B, total_B).clamp_(min=1)
    cut_off_BK = (sum_BK - mass_BK >= enough_B[:, None]) | (p_BK < cut.min_p_B1)
    return mass_BK.masked_fill_(cut_off_BK, 0)


def draw_truncated(
    best_BK: Tensor, ids_BK: Tensor, mass_BK: Tensor, uniform_B: Tensor, *, complete: bool
) -> Tensor:
    """Draw from the kept candidates; UNDECIDED where more candidates might have been kept."""
    index_B = first_beyond(mass_BK, floor_share(uniform_B, mass_BK.sum(-1)))
    ids_B = ids_BK.gather(-1, index_B[:, None])[:, 0]
    sure_B = best_BK[:, 0].isfinite()
    if not complete:
        last_B = (mass_BK > 0).sum(-1).sub_(1).clamp_(min=0)
        sure_B &= best_BK.gather(-1, last_B[:, None])[:, 0] > best_BK[:, -1]
    return torch.where(sure_B, ids_B, UNDECIDED)


def confirmed(token_ids: Sequence[int], drafts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return what each row has drawn: its first token, and while a draft is the one drawn, the one
    after it. `token_ids` has one for each row and draft."""
    tokens, first = list[list[int]](), 0
    for ids in drafts:
        count = 1
        while count <= len(ids) and ids[count - 1] == token_ids[first + count - 1]:
            count += 1
        tokens.append([*token_ids[first : first + count]])
        first += 1 + len(ids)
    return tokens
