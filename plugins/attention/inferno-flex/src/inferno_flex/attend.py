"""Attention of one layer by FlexAttention: over the keys of each sequence, gathered from its
blocks, with one function of a score for masks, soft caps and sinks.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, V value dim, S sequences, Q
queries of a sequence, L keys of a sequence, padded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as cached
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from inferno.attention.gathered import GatheredAttend
from inferno.attention.part import Part
from inferno.contracts import AttentionNeed

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, sequence, head, query, key) -> score, as FlexAttention calls it."""


def eager(need: AttentionNeed) -> FlexAttend:
    return FlexAttend(need, _eager)


def compiled(need: AttentionNeed) -> FlexAttend:
    return FlexAttend(need, _compiled())


@cached
def _compiled() -> Callable[..., Any]:
    """One kernel for steps of all lengths."""
    return torch.compile(flex.flex_attention, dynamic=True)


def _eager(*arguments: Any, **named: Any) -> Any:
    """Call FlexAttention without the compiler, which it would start even so, for each new length
    once."""
    before = getattr(flex, _DISABLE, False)
    setattr(flex, _DISABLE, True)
    try:
        return flex.flex_attention(*arguments, **named)
    finally:
        setattr(flex, _DISABLE, before)


_DISABLE = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
"""The switch that torch's warning names."""


@frozen
class FlexAttend(GatheredAttend):
    """One layer's attention."""

    attend: Callable[..., Any] = field(eq=False)
    """FlexAttention, eager or compiled."""

    def part(
        self, q_THC: Tensor, k_SKLC: Tensor, v_SKLV: Tensor, part: Part, sinks_H: Tensor | None
    ) -> Tensor:
        S, Q, L = part.hidden_SQL.shape
        if L == 0:  # padding rows only
            return q_THC.new_zeros((*q_THC.shape[:2], self.need.output_dim))
        if sinks_H is not None:  # a key whose score is the sink, and whose value is zero
            k_SKLC, v_SKLV = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k_SKLC, v_SKLV))
        out_SHQV: Tensor = self.attend(
            q_THC.unflatten(0, (S, Q)).transpose(1, 2),
            k_SKLC,
            v_SKLV,
            score_mod=self._score(part.hidden_SQL, L, sinks_H),
            scale=self.need.scale,
            enable_gqa=True,
        )
        if part.padding_S is not None:
            out_SHQV = out_SHQV.masked_fill(part.padding_S[:, None, None, None], 0.0)
        return out_SHQV.transpose(1, 2).flatten(0, 1)

    def _score(self, hidden_SQL: Tensor, length: int, sinks_H: Tensor | None) -> Score:
        """Return the function of a score: soft cap, mask, and the sink behind the last key."""
        # Tensors: torch's compiler cannot lower a score with numbers of Python that may vary.
        device = hidden_SQL.device
        last = torch.full((), length - 1, device=device)
        capped = self.need.soft_cap is not None
        cap = torch.full((), self.need.soft_cap or 1.0, device=device)

        def masked(score: Tensor, s: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            if capped:
                score = cap * torch.tanh(score / cap)
            return torch.where(hidden_SQL[s, q, torch.minimum(k, last)], -float("inf"), score)

        if sinks_H is None:
            return masked
        sinks = sinks_H.float()

        def with_sinks(score: Tensor, s: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return torch.where(k > last, sinks[h].to(score.dtype), masked(score, s, h, q, k))

        return with_sinks
