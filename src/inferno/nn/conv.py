"""Short causal convolutions, each channel by itself: what recurrent layers do before their rule.

Suffixes: T packed tokens, S sequences, D channels, K taps, P the tokens before (K - 1), E packed
tokens with each sequence's P tokens before them, N tokens of one sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from inferno.contracts import Range
from inferno.nn.batch import Batch
from inferno.nn.cut import Cut
from inferno.nn.recurrence import in_turn


def causal_conv(
    x_TD: Tensor,
    weight_DK: Tensor,
    bias_D: Tensor | None,
    state_SPD: Tensor,
    query_starts: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Each token's sum over itself and the K - 1 tokens before it, (T, D) in x's type, and the last
    K - 1 inputs of each sequence, (S, P, D) in the states' type.

    `state_SPD` has the inputs before the step, oldest first, zeros before a sequence begins. Sums
    are float32 and in one order: a sequence cut into pieces gives the same bits. Every sequence has
    at least one token.
    """
    before = state_SPD.shape[1]
    if len(x_TD) == len(state_SPD):  # one token each: no loop
        window_SKD = torch.cat([state_SPD, x_TD[:, None].to(state_SPD.dtype)], 1)
        y_TD = _taps(window_SKD.unbind(1), weight_DK, bias_D)
        return y_TD.to(x_TD.dtype), window_SKD[:, 1:]
    spans = list(itertools.pairwise(query_starts))
    x_ED = torch.cat(
        [part for s, (i, j) in enumerate(spans) for part in (state_SPD[s], x_TD[i:j].to(state_SPD))]
    )
    count = len(x_ED) - before
    y_ED = _taps([x_ED[tap : tap + count] for tap in range(before + 1)], weight_DK, bias_D)
    y_TD = torch.cat([y_ED[i + s * before : j + s * before] for s, (i, j) in enumerate(spans)])
    ends = [j + (s + 1) * before for s, (_, j) in enumerate(spans)]
    return y_TD.to(x_TD.dtype), torch.stack([x_ED[end - before : end] for end in ends])


def _taps(shifted: Sequence[Tensor], weight_DK: Tensor, bias_D: Tensor | None) -> Tensor:
    """The sum of `shifted`, oldest first, each times its tap."""
    weight_KD = weight_DK.float().t().contiguous()
    y_ND = shifted[0].float() * weight_KD[0]
    for x_ND, weight_D in zip(shifted[1:], weight_KD[1:], strict=True):
        y_ND.addcmul_(x_ND.float(), weight_D)
    return y_ND if bias_D is None else y_ND + bias_D


class CausalConv(nn.Module):
    """A short causal convolution, stored as torch's `Conv1d` of one group per channel."""

    def __init__(self, channels: int, kernel_size: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel_size))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.cuts: Mapping[str, Cut] = {}
        """As a `Linear` has them."""

    def keep(self, *ranges: Range) -> None:
        """Compute only these channels."""
        self.cuts = dict.fromkeys(("weight", "bias"), Cut.rows(*ranges))

    def forward(self, x_TD: Tensor, state_BPD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sums, and the last inputs of each sequence, given those of the ones that are no
        drafts."""

        def rule(
            inputs: Sequence[Tensor], state_SPD: Tensor, query_starts: Sequence[int]
        ) -> tuple[Tensor, Tensor]:
            [x_TD] = inputs
            return causal_conv(x_TD, self.weight[:, 0], self.bias, state_SPD, query_starts)

        return in_turn(rule, [x_TD], state_BPD, batch)
