"""Deals a mixture's experts out to ranks: each has some, whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from attrs import field, frozen

from inferno.contracts import HeldMatrix, Shard
from inferno.errors import UnsupportedError
from inferno.plan.plan import pattern_of
from inferno.plan.rank_use import ExpertUse


@frozen
class Dealt:
    """Which rank has which experts."""

    shard: Shard
    ranks: Mapping[str, int] = field(factory=dict)
    """The rank of each expert's matrix, by its module's path. Empty if they are not dealt out."""
    counts: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """How many experts each rank has, by the path of a layer's experts."""
    largest: int = 0
    """The rank whose experts take most memory."""

    @classmethod
    def of(cls, shard: Shard, held: Mapping[str, HeldMatrix]) -> Dealt:
        """Deal out all experts among these matrices, if the shard says so. Raises
        UnsupportedError."""
        if not shard.experts:
            return cls(shard)
        by_path = {path: each for path in held if (each := shard.expert_of(path)) is not None}
        last = defaultdict[str, int](int)
        for parent, number in by_path.values():
            last[parent] = max(last[parent], number)
        if not last:
            raise UnsupportedError(
                "--ep: this model has no routed experts",
                "Leave --ep out: each engine has the whole model."
                if shard.own_tokens
                else "Leave --ep out: ranks share each layer.",
            )
        who, flag, otherwise = "ranks", "--tp", "ranks share each expert"
        if shard.own_tokens:
            who, flag, otherwise = "engines", "--dp", "each engine has all experts"
        if (fewest := min(last.values()) + 1) < shard.ranks:
            raise UnsupportedError(
                f"--ep: {fewest} experts cannot be dealt out to {shard.ranks} {who}",
                f"Use {flag} {fewest}, or leave --ep out: {otherwise}."
                if fewest > 1
                else f"Leave --ep out: {otherwise}.",
            )
        shares = {parent: shard.shares(number + 1, 1) for parent, number in last.items()}
        ranks = {
            path: next(rank for rank, share in enumerate(shares[parent]) if number < share[1])
            for path, (parent, number) in by_path.items()
        }
        sizes = Counter[int]()
        for path, rank in ranks.items():
            sizes[rank] += held[path].nbytes
        counts = {
            parent: tuple(stop - start for start, stop in each) for parent, each in shares.items()
        }
        return cls(shard, ranks, counts, max(range(shard.ranks), key=sizes.__getitem__))

    def uses(self, held: Mapping[str, HeldMatrix]) -> tuple[ExpertUse, ...]:
        """Return what the plan says of them."""
        sizes = Counter[tuple[str, tuple[int, ...]]]()
        for path, rank in self.ranks.items():
            if rank == self.largest and (expert := self.shard.expert_of(path)) is not None:
                parent, _ = expert
                sizes[pattern_of(parent), self.counts[parent]] += held[path].nbytes
        return tuple(ExpertUse(*key, nbytes) for key, nbytes in sizes.items())
