"""What a plan says of engines beside each other, each of which has the whole model."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class EnginesUse:
    """Data parallelism: how many engines answer requests, each one's share of them. Sizes in the
    plan, of threads, weights, cache and memory, are those of one."""

    count: int
    cores: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Those that each engine's ranks are bound to, by engine and rank; an engine without ranks has
    one entry. None: the system chooses."""
    devices: tuple[tuple[int, ...], ...] = ()
    """The numbers of their devices, by engine and rank; none: all compute on the CPU."""
