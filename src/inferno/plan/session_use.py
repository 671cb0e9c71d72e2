"""How the blocks of sessions are kept."""

from __future__ import annotations

from attrs import frozen

from inferno.contracts import SessionNeed


@frozen(kw_only=True)
class SessionUse:
    """What keeps sessions, and how much of one."""

    name: str
    distribution: str
    ttl: float
    """Seconds that a session is kept after its last use, if its requests do not say."""
    quota: int
    """The most tokens that a session may have."""

    def need(self, block_size: int, num_blocks: int) -> SessionNeed:
        """Return what sessions are built for."""
        return SessionNeed(
            block_size=block_size, num_blocks=num_blocks, ttl=self.ttl, quota=self.quota
        )
