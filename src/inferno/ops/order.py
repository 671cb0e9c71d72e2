"""Draws from the best tokens without sorting them, and without values that the host must know: the
token that a sort would draw, found by histograms of the logits.

Tokens rank by logit, equal ones by id. What `top_k`, `top_p` and `min_p` keep is a prefix of that
order, so that it is described by its mass alone. Masses are integers: sums are exact in any order.

Suffixes: B rows drawn together, V vocabulary, N buckets.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from inferno.ops.masses import floor_share, integer_masses, relative_probabilities

_BITS = 16
_BUCKETS = 1 << _BITS
_LOW = _BUCKETS - 1


def draw_best(
    x_BV: Tensor,
    temperature_B1: Tensor,
    min_p_B1: Tensor,
    top_k_B: Tensor,
    top_p_B: Tensor,
    uniform_B: Tensor,
) -> Tensor:
    """Return a token id of each row, (B,): the one drawn from what `top_k`, then `top_p` (of the
    rest), then `min_p` keep. `x_BV` is float32 and not NaN; a row whose best logit is infinite gets
    some id."""
    best_B1 = x_BV.amax(-1, keepdim=True)
    mass_BV = integer_masses(x_BV, best_B1, temperature_B1).clamp_(min=0)
    ranks = Ranks.of(x_BV)
    counts = ranks.find(torch.ones_like(mass_BV), top_k_B - 1)
    each_B = ranks.equal_to(counts, mass_BV)
    total_B = ranks.before(counts, mass_BV) + (top_k_B - counts.before_B) * each_B
    enough_B = floor_share(top_p_B, total_B).clamp_(min=1)
    kept_B = torch.minimum(ranks.prefix(mass_BV, enough_B), total_B)
    p_BV = relative_probabilities(x_BV, best_B1, temperature_B1)
    likely_B = mass_BV.masked_fill(p_BV < min_p_B1, 0).sum(-1)
    target_B = floor_share(uniform_B, torch.minimum(kept_B, likely_B))
    return ranks.token(mass_BV, target_B)


@frozen(eq=False)
class _Place:
    """A logit of each row, and the weight of the tokens with a greater one."""

    high_B: Tensor
    low_B: Tensor
    before_B: Tensor


@frozen(eq=False)
class Ranks:
    """The order of the logits, the greatest first, as two numbers of 16 bits."""

    high_BV: Tensor
    low_BV: Tensor

    @classmethod
    def of(cls, x_BV: Tensor) -> Ranks:
        bits_BV = (x_BV + 0.0).view(torch.int32)  # -0.0 is 0.0
        # As integers, negative floats are in reverse order.
        key_BV = torch.where(bits_BV < 0, bits_BV ^ 0x7FFFFFFF, bits_BV).long()
        return cls(_LOW - ((key_BV >> _BITS) + (_BUCKETS >> 1)), _LOW - (key_BV & _LOW))

    def find(self, weight_BV: Tensor, target_B: Tensor) -> _Place:
        """Return the first logit at which the cumulative weight exceeds the target."""
        high_B, before_B = _first(self.high_BV, weight_BV, target_B)
        inside_BV = weight_BV.masked_fill(self.high_BV != high_B[:, None], 0)
        low_B, more_B = _first(self.low_BV, inside_BV, target_B - before_B)
        return _Place(high_B, low_B, before_B + more_B)

    def is_at(self, place: _Place) -> Tensor:
        return (self.high_BV == place.high_B[:, None]) & (self.low_BV == place.low_B[:, None])

    def equal_to(self, place: _Place, mass_BV: Tensor) -> Tensor:
        """Return the mass of one token with that logit."""
        return mass_BV.masked_fill(~self.is_at(place), 0).amax(-1)

    def before(self, place: _Place, mass_BV: Tensor) -> Tensor:
        """Return the mass of the tokens with a greater logit."""
        same_BV = self.high_BV == place.high_B[:, None]
        lower_BV = (self.high_BV > place.high_B[:, None]) | (
            same_BV & (self.low_BV >= place.low_B[:, None])
        )
        return mass_BV.masked_fill(lower_BV, 0).sum(-1)

    def prefix(self, mass_BV: Tensor, enough_B: Tensor) -> Tensor:
        """Return the mass of the shortest prefix that has at least `enough_B`."""
        place = self.find(mass_BV, enough_B - 1)
        each_B = self.equal_to(place, mass_BV)
        more_B = (enough_B - 1 - place.before_B) // each_B.clamp(min=1) + 1
        return place.before_B + more_B * each_B

    def token(self, mass_BV: Tensor, target_B: Tensor) -> Tensor:
        """Return the first token at which the cumulative mass exceeds the target."""
        place = self.find(mass_BV, target_B)
        each_B = self.equal_to(place, mass_BV).clamp(min=1)
        before_B = (target_B - place.before_B) // each_B  # tokens with the same logit
        rank_BV = self.is_at(place).cumsum(-1)
        return (rank_BV <= before_B[:, None]).sum(-1).clamp_(max=rank_BV.shape[1] - 1)


def _first(bucket_BV: Tensor, weight_BV: Tensor, target_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first bucket at which the cumulative weight exceeds the target, and the weight
    before it."""
    weight_BN = weight_BV.new_zeros(len(weight_BV), _BUCKETS).scatter_add_(1, bucket_BV, weight_BV)
    sum_BN = weight_BN.cumsum(-1)
    first_B = (sum_BN <= target_B[:, None]).sum(-1).clamp_(max=_BUCKETS - 1)
    before_BN = sum_BN - weight_BN
    return first_B, before_BN.gather(-1, first_B[:, None])[:, 0]
