"""What a plan says of engines that share routed experts."""

from __future__ import annotations

from attrs import frozen

from inferno.contracts import Shard
from inferno.plan.rank_use import ExpertUse


@frozen(kw_only=True)
class DealtUse:
    """Data-parallel attention with expert parallelism: each engine has requests and a cache of its
    own, and all weights but those of routed experts, which are dealt out to the engines. The
    engines step together: in each mixture they exchange tokens. Sizes in the plan are of the engine
    whose experts take most memory."""

    shard: Shard
    """The share of one engine; in the plan of all engines, that of the first."""
    experts: tuple[ExpertUse, ...]
    weight_bytes: int
    """Bytes of all weights, with each expert once."""
    weights: tuple[int, ...]
    """Bytes of the weights of each engine."""
    mixtures: int
    """Layers in which tokens are exchanged."""
    wire_bytes: int
    """Bytes that an engine receives from the others in all mixtures while each computes one token:
    their tokens, and results for all tokens."""
    folder: str = ""
    """Where the engines' processes meet, on this machine; empty in the plan of all."""
