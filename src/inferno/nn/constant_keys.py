"""Keys that 8 bits can hold: large biases are added to the scores instead, and large channels are
divided by what their queries are multiplied by.

A cache of 8 bits rounds a key by its largest channel. A bias of 300 beside channels of 3 leaves
these a hundredth of their digits, and is the same in every key but for the rotation: what it adds
to a score is a wave of the key's position (`contracts.Waves`), which is known exactly.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, D hidden, E rotated pairs,
P pairs that are taken out, W waves (two for each), X both terms of each wave, L lines, N positions,
R rows of a matrix.
"""

from __future__ import annotations

import math

import torch
from attrs import frozen
from torch import Tensor

from inferno.contracts import Waves
from inferno.nn.weight import Weight

LARGE = 2.0
"""A pair of channels is taken out if its bias is this many times as large as what a typical pair of
its head adds to it."""

UNEVEN = 4.0
"""A pair of channels is divided by a power of two if it is this many times as large as a typical
pair of its head."""

_ROWS = 512
"""Rows of a matrix that are unpacked at once."""


@frozen
class Pairs:
    """Which channels of a head are rotated together: (i, i + E) or, if interleaved, (2 i,
    2 i + 1)."""

    count: int
    interleaved: bool

    def split(self, x_KC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and the second channel of each pair, (K, E)."""
        x_KR = x_KC[:, : 2 * self.count]
        if self.interleaved:
            return x_KR[:, ::2], x_KR[:, 1::2]
        return x_KR[:, : self.count], x_KR[:, self.count :]


@frozen(eq=False)
class ConstantKeys:
    """The constant part of a layer's keys that is not stored. Line e of `Waves.lines_LN` is the
    cosine of pair e, line E + e its sine."""

    channels_HX: Tensor
    """Channels of a query, int64: W for the first terms of its amplitudes, W for the second."""
    factors_HX: Tensor
    used_KW: Tensor

    @classmethod
    def of(cls, bias_KC: Tensor, large_KE: Tensor, pairs: Pairs, num_heads: int) -> ConstantKeys:
        """Take out the biases of the pairs that are large, for `num_heads` query heads."""
        most = int(large_KE.sum(-1).max())
        # As many pairs in every head: where fewer are large, others take part with a bias of 0.
        pair_KP = large_KE.float().topk(most, -1).indices.sort(-1).values
        channels_KC = torch.arange(bias_KC.shape[1], device=bias_KC.device).expand_as(bias_KC)
        first_KP, second_KP = (x.gather(1, pair_KP) for x in pairs.split(channels_KC))
        taken_KE = (x * large_KE for x in pairs.split(bias_KC.float()))
        b_KP, c_KP = (x.gather(1, pair_KP) for x in taken_KE)
        # q · R b = (q1 b + q2 c) cos + (q2 b - q1 c) sin, R the rotation of a bias (b, c)
        channels_KX = torch.cat([first_KP, second_KP, second_KP, first_KP], 1)
        factors_KX = torch.cat([b_KP, b_KP, c_KP, -c_KP], 1)
        group = num_heads // len(bias_KC)
        return cls(
            channels_KX.repeat_interleave(group, 0),
            factors_KX.repeat_interleave(group, 0),
            torch.cat([pair_KP, pair_KP + pairs.count], 1).int().contiguous(),
        )

    def waves(self, q_THC: Tensor, lines_LN: Tensor) -> Waves:
        """Return the waves of a step's queries, which are rotated. Every value is rounded as it is
        in any other step."""
        terms_THX = q_THC.gather(2, self.channels_HX.expand(len(q_THC), -1, -1)) * self.factors_HX
        first_THW, second_THW = terms_THX.chunk(2, -1)
        return Waves(first_THW + second_THW, self.used_KW, lines_LN)


def large_pairs(bias_KC: Tensor, usual_KC: Tensor, pairs: Pairs) -> Tensor:
    """Return which pairs of keys have a bias that is large beside the usual size of the head's
    channels without it: bool (K, E)."""
    typical_K1 = usual_KC.median(-1, keepdim=True).values * math.sqrt(2)
    return torch.hypot(*pairs.split(bias_KC.float())) > LARGE * typical_K1


def evening_factors(usual_KC: Tensor, pairs: Pairs) -> Tensor:
    """Return what the channels of keys are divided by, and those of queries multiplied, so that no
    pair is much larger than a typical one of its head: powers of two, the same for both channels of
    a pair, as they are rotated into each other. (K, C)."""
    sizes_KC = usual_KC.float().clone()
    first_KE, second_KE = pairs.split(sizes_KC)
    both_KE = torch.hypot(first_KE, second_KE) / math.sqrt(2)
    first_KE.copy_(both_KE), second_KE.copy_(both_KE)
    ratio_KC = sizes_KC / sizes_KC.median(-1, keepdim=True).values.clamp_min(1e-30)
    return torch.where(ratio_KC >= UNEVEN, torch.exp2(ratio_KC.log2().floor()), 1.0)


def usual_sizes(weight: Weight, rows_R: Tensor, inputs_D: Tensor) -> Tensor:
    """Return the root mean square of what these rows of the weight give, for independent inputs of
    these sizes."""
    parts = (weight.rows(some_R).float() * inputs_D for some_R in rows_R.split(_ROWS))
    return torch.cat([part_RD.square().sum(-1) for part_RD in parts]).sqrt()
