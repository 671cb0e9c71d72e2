"""Draw tokens with integer probabilities.

Probabilities are integers (`integer_masses`): their sums are the same in any order, so no batch
shape, thread count or padding can move a draw across a boundary. Equally likely tokens rank by id,
as in argmax.

Suffixes: B rows drawn together, V vocabulary, K candidates, N blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from inferno.sampling.state import UNIFORM_BITS

UNDECIDED = -1
"""Returned if the candidates do not decide the draw: draw again from more of them."""
_UNIT = 2.0**40
"""Mass of the most likely token. Tokens 2**40 times less likely have mass 0; the masses of 2**22
tokens fit into int64."""
_BLOCK = 128
"""Masses summed at once; divides the common vocabulary sizes, others are padded."""


def index_of(positions: Sequence[int], device: torch.device) -> slice | Tensor:
    """Return an index of ascending positions: a slice, which copies nothing, if there is no gap."""
    if positions[-1] - positions[0] + 1 == len(positions):
        return slice(positions[0], positions[-1] + 1)
    return torch.tensor(positions, device=device)


def floor_share(part: Tensor, whole: Tensor) -> Tensor:
    """Return floor(whole * part / 2**31), exactly; below `whole` if `part` is below 2**31."""
    high: Tensor = part * (whole >> UNIFORM_BITS)
    low: Tensor = (part * (whole & (2**UNIFORM_BITS - 1))) >> UNIFORM_BITS
    return high + low


def replace_nonfinite(x_BV: Tensor) -> Tensor:
    return torch.nan_to_num(
        x_BV.float(), nan=-math.inf, posinf=torch.finfo(torch.float32).max, neginf=-math.inf
    )


def relative_probabilities(x_BV: Tensor, best_B1: Tensor, temperature_B1: Tensor) -> Tensor:
    """Return probabilities relative to the best token's, as a new tensor."""
    return x_BV.float().sub(best_B1.float()).div_(temperature_B1).exp_()


def integer_masses(
    x_BV: Tensor, best_B1: Tensor, temperature_B1: Tensor, min_p_B1: Tensor | None = None
) -> Tensor:
    """Return unnormalised probabilities as integers: the best token's is _UNIT."""
    p_BV = relative_probabilities(x_BV, best_B1, temperature_B1)
    if min_p_B1 is not None:
        p_BV.masked_fill_(p_BV < min_p_B1, 0)
    return p_BV.mul_(_UNIT).long()


def first_beyond(mass_BK: Tensor, target_B: Tensor) -> Tensor:
    """Return the first index whose cumulative mass exceeds the target: never one with mass 0."""
    return (mass_BK.cumsum(-1) <= target_B[:, None]).sum(-1).clamp_(max=mass_BK.shape[-1] - 1)


def draw_full(
    x_BV: Tensor, temperature_B1: Tensor, min_p_B1: Tensor | None, uniform_B: Tensor
) -> Tensor:
    """Draw from the whole vocabulary: first a block, then the token in it."""
    best_B1 = x_BV.amax(-1, keepdim=True)
    mass_BV = integer_masses(x_BV, best_B1, temperature_B1, min_p_B1)
    if padding := -mass_BV.shape[1] % _BLOCK:
        mass_BV = torch.nn.functional.pad(mass_BV, (0, padding))
    blocks_BNK = mass_BV.view(len(mass_BV), -1, _BLOCK)
    block_BN = blocks_BNK.sum(-1)
    target_B = floor_share(uniform_B, block_BN.sum(-1))
    block_B = first_beyond(block_BN, target_B)
    before_B = (block_BN.cumsum(-1) - block_BN).gather(-1, block_B[:, None])[:, 0]
    mass_BK = blocks_BNK[torch.arange(len(block_B), device=block_B.device), block_B]
    ids_B = block_B * _BLOCK + first_beyond(mass_BK, target_B - before_B)
    return torch.where(best_B1[:, 0].isfinite(), ids_B, UNDECIDED)


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


def truncate(
    best_BK: Tensor,
    top_k_B: Tensor,
    top_p_B: Tensor,
    total_B: Tensor | None,
    temperature_B1: Tensor,
    min_p_B1: Tensor,
) -> Tensor:
    """Return the masses of the candidates, 0 for those that `top_k`, then `top_p` (of the rest),
    then `min_p` cut off. What is kept is a prefix.

    `top_p` is a share of `total_B`; None: of the mass that `top_k` keeps.
    """
    p_BK = relative_probabilities(best_BK, best_BK[:, :1], temperature_B1)
    mass_BK = (p_BK * _UNIT).long()
    mass_BK.masked_fill_(
        torch.arange(best_BK.shape[1], device=best_BK.device) >= top_k_B[:, None], 0
    )
    sum_BK = mass_BK.cumsum(-1)
    enough_B = floor_share(top_p_B, sum_BK[:, -1] if total_B is None else total_B).clamp_(min=1)
    return mass_BK.masked_fill_((sum_BK - mass_BK >= enough_B[:, None]) | (p_BK < min_p_B1), 0)


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
