"""What an engine knows of other instances that compute prompts for it."""

from __future__ import annotations

from attrs import define, field


@define
class LinkedInstance:
    """What a decoding end knows of one instance that computes prompts for it."""

    connected: bool = False
    """Whether it takes prompts now."""
    waiting: int = 0
    """Prompts that were sent there and have not ended."""
    prompts: int = 0
    """All that were sent there."""
    failures: dict[str, int] = field(factory=dict)
    """By cause, prompts of which it did not send all blocks: another instance was asked for the
    rest, or they were computed here."""
