"""Integer probabilities of tokens, and the draw from all of them.

Probabilities are integers (`integer_masses`): their sums are the same in any order, so no batch
shape, thread count, padding or kernel can move a draw across a boundary. Equally likely tokens rank
by id, as in argmax.

Suffixes: B rows drawn together, V vocabulary, K candidates, N blocks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

UNDECIDED = -1
"""Returned if the candidates do not decide the draw: draw again from more of them."""
UNIFORM_BITS = 31
"""Bits of a uniform number. `floor_share` multiplies it by masses of up to 63 bits, exactly."""
UNIT = 2.0**40
"""Mass of the most likely token. Tokens 2**40 times less likely have mass 0; the masses of 2**22
tokens fit into int64."""
_LEAST = -64.0
"""The logarithm of a probability far below 1 / UNIT."""
_BLOCK = 128
"""Masses summed at once; divides the common vocabulary sizes, others are padded."""


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
    """Return probabilities relative to the best token's, as a new tensor. Those below `_LEAST`,
    which all have mass 0, become that one: a CPU's exp takes 3 to 35 times longer for -inf and for
    what is denormal or less."""
    x_BV = x_BV.float().sub(best_B1.float()).div_(temperature_B1)
    return x_BV.clamp_(min=_LEAST).exp_()


def integer_masses(
    x_BV: Tensor, best_B1: Tensor, temperature_B1: Tensor, min_p_B1: Tensor | None = None
) -> Tensor:
    """Return unnormalised probabilities as integers: the best token's is UNIT."""
    p_BV = relative_probabilities(x_BV, best_B1, temperature_B1)
    if min_p_B1 is not None:
        p_BV.masked_fill_(p_BV < min_p_B1, 0)
    return p_BV.mul_(UNIT).long()


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
