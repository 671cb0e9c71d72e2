"""What each machine needs of a plan whose ranks or engines share it."""

from __future__ import annotations

from attrs import frozen

from inferno.plan.pipeline import plan_of_stage
from inferno.plan.plan import Plan


@frozen(kw_only=True)
class RankBytes:
    """What one rank has in memory."""

    rank: int
    weights: int
    cache: int
    other: int
    """Of the interpreter, activations and whatever else is planned."""

    @property
    def nbytes(self) -> int:
        return self.weights + self.cache + self.other


@frozen(kw_only=True)
class MachineBytes:
    """What the ranks of one machine have in memory, in all of its engines."""

    number: int
    """The first one, 0, has the engine."""
    engines: int
    ranks: tuple[RankBytes, ...]
    """Of one engine."""

    @property
    def weights(self) -> int:
        return self.engines * sum(rank.weights for rank in self.ranks)

    @property
    def cache(self) -> int:
        return self.engines * sum(rank.cache for rank in self.ranks)

    @property
    def nbytes(self) -> int:
        return self.engines * sum(rank.nbytes for rank in self.ranks)


def machines_of(plan: Plan) -> tuple[MachineBytes, ...]:
    """Return what each machine needs; none if one process computes all of it."""
    engines = 1 if plan.engines is None else plan.engines.count
    planned = {item.name: item.nbytes for item in plan.memory}
    weights, cache = planned.pop("weights"), planned.pop("KV cache")
    other = sum(planned.values())
    if (ranks := plan.ranks) is None:
        if engines == 1:
            return ()
        share = RankBytes(rank=0, weights=weights, cache=cache, other=other)
        return (MachineBytes(number=0, engines=engines, ranks=(share,)),)
    caches = [plan_of_stage(plan, stage).kv_bytes for stage in range(ranks.stages)]
    each = tuple(
        RankBytes(rank=rank, weights=share, cache=caches[ranks.stage_of(rank)], other=other)
        for rank, share in enumerate(ranks.weights)
    )
    return tuple(
        MachineBytes(number=number, engines=engines, ranks=each[first : first + ranks.here])
        for number, first in enumerate(range(0, ranks.count, ranks.here))
    )
