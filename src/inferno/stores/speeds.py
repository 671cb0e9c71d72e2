"""What it costs to compute tokens, and to move the bytes of blocks instead: as measured so far."""

from __future__ import annotations

from collections import deque

from attrs import define, field

from inferno.contracts import StoreUsage

LARGE = 64
"""Tokens of a step that tell how fast prompts are computed."""
MEMORY = 1 << 16
"""Tokens after which older steps count half."""
SHARE = 0.5
"""How much longer than others a step may take because it loads."""


@define
class Speeds:
    """Estimates, in seconds and bytes. Where nothing was measured yet they are None, and moving
    pays."""

    usage: StoreUsage
    _tokens: float = 0.0
    _seconds: float = 0.0
    _steps: deque[float] = field(factory=lambda: deque(maxlen=31))
    """Seconds of the last steps."""

    def computed(self, num_tokens: int, seconds: float) -> None:
        """Note how long a step took."""
        self._steps.append(seconds)
        if num_tokens < LARGE:
            return
        if self._tokens > MEMORY:
            self._tokens, self._seconds = self._tokens / 2, self._seconds / 2
        self._tokens += num_tokens
        self._seconds += seconds

    def to_compute(self, num_tokens: int) -> float | None:
        """Return the seconds in which tokens of a prompt are computed."""
        return num_tokens * self._seconds / self._tokens if self._tokens else None

    def to_move(self, nbytes: int, far: int = 0) -> float | None:
        """Return the seconds in which bytes are copied, of which so many must first be brought
        near."""
        copying = _over(self.usage.copy_seconds, self.usage.saved_bytes + self.usage.loaded_bytes)
        reading = _over(self.usage.fetch_seconds, self.usage.fetched_bytes) if far else 0.0
        if copying is None or reading is None:
            return None
        return nbytes * copying + far * reading

    def pays(self, num_tokens: int, nbytes: int, far: int = 0) -> bool:
        """Whether moving bytes takes no longer than computing the tokens that they are for."""
        computing, moving = self.to_compute(num_tokens), self.to_move(nbytes, far)
        return computing is None or moving is None or moving <= computing

    def pays_to_save(self, num_tokens: int, nbytes: int) -> bool:
        """Whether to save bytes, and to load them later, takes no longer than computing the tokens
        that they are for. As many of them are far by then as of what was loaded so far."""
        fetched, loaded = self.usage.fetched_bytes, self.usage.loaded_bytes
        far = nbytes * min(fetched, loaded) // loaded if loaded else 0
        return self.pays(num_tokens, 2 * nbytes, far)

    def budget(self) -> int | None:
        """Return the bytes that a step may load beside what it computes; None: unknown."""
        second = self.to_move(1)
        if not self._steps or not second:
            return None
        return int(SHARE * sorted(self._steps)[len(self._steps) // 2] / second)


def _over(seconds: float, nbytes: int) -> float | None:
    return seconds / nbytes if nbytes else None
