"""What a plan says of engines that have routed experts among them."""

from __future__ import annotations

from attrs import frozen

from inferno.contracts import Shard
from inferno.plan.rank_use import ExpertUse


@frozen(kw_only=True)
class DealtUse:
    """Data-parallel attention with expert parallelism: each engine has requests, a cache and all
    weights of its own but those of routed experts, which are dealt out to the engines. These step
    together: in each mixture they exchange tokens. Sizes in the plan are of the engine whose
    experts take most memory."""

    shard: Shard
    """Of one engine; in the plan of all, of the first one."""
    experts: tuple[ExpertUse, ...]
    weight_bytes: int
    """Of all weights, once."""
    weights: tuple[int, ...]
    """Bytes of the weights of each engine."""
    mixtures: int
    """Layers in which tokens are exchanged."""
    wire_bytes: int
    """Bytes that an engine receives from the others, in all layers, while each computes one token,
    and for this."""
    folder: str = ""
    """Where the engines' processes meet, on this machine; empty in the plan of all."""
