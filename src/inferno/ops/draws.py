"""Definitions, in torch, of the ops that turn logits into tokens: `adjust` and `draw`.

Suffixes: B rows drawn together, V vocabulary, R resident rows, N biases of all rows, W words of 32
tokens.
"""

from __future__ import annotations

import math

import torch
from attrs import frozen
from torch import Tensor

from inferno.ops.masses import UNIFORM_BITS, draw_full, replace_nonfinite
from inferno.ops.order import draw_best

BEST = -1
"""The uniform number of a row whose best token is taken."""


@frozen(eq=False)
class DrawParams:
    """How each row's token is drawn, (B,) each, on the logits' device."""

    temperature_B: Tensor
    """float32, positive."""
    min_p_B: Tensor
    """float32: tokens less likely than this share of the best one's probability are cut off."""
    top_k_B: Tensor
    """int64, at least 1."""
    top_p_B: Tensor
    """int64: a probability times 2**31."""
    uniform_B: Tensor
    """int64: a number in [0, 1) times 2**31, or BEST."""

    def of(self, rows: slice) -> DrawParams:
        """Return those of some rows."""
        return DrawParams(
            self.temperature_B[rows].contiguous(),
            self.min_p_B[rows].contiguous(),
            self.top_k_B[rows],
            self.top_p_B[rows],
            self.uniform_B[rows],
        )


@frozen(eq=False)
class Penalties:
    """Penalties of tokens that occurred."""

    rows_B: Tensor
    """int64: each row's resident row."""
    recent_RV: Tensor | None
    """Counts of the tokens that the repetition penalty covers, int32."""
    generated_RV: Tensor | None
    """Counts of the tokens that the other two cover, int32."""
    repetition_B: Tensor
    """float32: divides positive logits, multiplies others."""
    frequency_B: Tensor
    """float32: subtracted for each time that a token occurred."""
    presence_B: Tensor
    """float32: subtracted once."""


@frozen(eq=False)
class Biases:
    """What is added to single tokens' logits. No token is named twice in a row."""

    at_N: Tensor
    """int64: a row of the logits."""
    ids_N: Tensor
    """int64."""
    values_N: Tensor
    """float32. -inf excludes the token."""


def adjust(
    logits_BV: Tensor,
    penalties: Penalties | None = None,
    biases: Biases | None = None,
    words_BW: Tensor | None = None,
) -> Tensor:
    """Return the logits after penalties and biases, and with -inf for tokens whose bit in the words
    (int32, the lowest bit first) is 0 or missing: float32 (B, V), a new tensor. NaN counts as -inf,
    +inf as the largest finite number."""
    x_BV = replace_nonfinite(logits_BV)
    if penalties is not None and penalties.recent_RV is not None:
        by_B1 = penalties.repetition_B[:, None]
        penalised_BV = torch.where(x_BV > 0, x_BV / by_B1, x_BV * by_B1)
        x_BV = torch.where(penalties.recent_RV[penalties.rows_B] > 0, penalised_BV, x_BV)
    if penalties is not None and penalties.generated_RV is not None:
        count_BV = penalties.generated_RV[penalties.rows_B]
        x_BV = x_BV - (
            count_BV * penalties.frequency_B[:, None]
            + (count_BV > 0) * penalties.presence_B[:, None]
        )
    if words_BW is not None:
        x_BV.masked_fill_(~_bits(words_BW, x_BV.shape[1]), -math.inf)
    if biases is not None:
        at, excluded_N = (biases.at_N, biases.ids_N), biases.values_N == -math.inf
        biased_N = (x_BV[at] + biases.values_N).masked_fill(excluded_N, -math.inf)
        x_BV.index_put_(at, biased_N)
    return x_BV


def _bits(words_BW: Tensor, size: int) -> Tensor:
    """Return the bit of each token, (B, size), False past the end."""
    places = torch.arange(32, device=words_BW.device, dtype=torch.int32)
    bits_BV = (words_BW[..., None] >> places & 1).flatten(1).bool()[:, :size]
    return torch.nn.functional.pad(bits_BV, (0, size - bits_BV.shape[1]))


def draw(logits_BV: Tensor, params: DrawParams | None, own_BV: Tensor | None = None) -> Tensor:
    """Return a token id of each row, int64 (B,): the best one, the lowest id among equals, if there
    are no parameters or its uniform number is BEST; else the first one at which the cumulative mass
    exceeds the share of the total that the uniform number says. Masses are `integer_masses`.

    If `top_k` covers the vocabulary and `top_p` is 1, tokens are in the order of their ids, and
    those that `min_p` cuts off have mass 0 (`draw_full`). Otherwise the best comes first, and
    tokens have mass 0 that `top_k`, then `top_p` (of the rest), then `min_p` cut off
    (`draw_best`).

    In the logits, NaN counts as -inf, and +inf as the largest finite number. `own_BV` has the
    model's logits if the others are adjusted: then a row whose best logit is not finite takes the
    best token of these, instead of token 0.
    """
    x_BV = replace_nonfinite(logits_BV) if own_BV is None else logits_BV.float()
    ids_B = x_BV.argmax(-1)
    if params is not None:
        full_B = (params.top_k_B >= x_BV.shape[1]) & (params.top_p_B >= 1 << UNIFORM_BITS)
        temperature_B1, min_p_B1 = params.temperature_B[:, None], params.min_p_B[:, None]
        uniform_B = params.uniform_B.clamp(min=0)
        drawn_B = torch.where(
            full_B,
            draw_full(x_BV, temperature_B1, min_p_B1, uniform_B),
            draw_best(x_BV, temperature_B1, min_p_B1, params.top_k_B, params.top_p_B, uniform_B),
        )
        ids_B = torch.where(params.uniform_B == BEST, ids_B, drawn_B)
    own_B = replace_nonfinite(logits_BV if own_BV is None else own_BV).argmax(-1)
    return torch.where(x_BV.amax(-1).isfinite(), ids_B, own_B)
