"""What loading measured."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Measured:
    """What loading measured on the device, in bytes."""

    free: int
    """Free before anything was loaded."""
    used: int
    """Taken by the weights and a step of the most tokens, the cache excepted."""
    captured: int = 0
    """Taken by the captured decode steps, estimated from the two largest."""
