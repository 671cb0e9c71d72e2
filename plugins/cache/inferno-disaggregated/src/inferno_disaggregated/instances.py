"""The instances that compute prompts for a decoding end, and which of them is asked for one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attrs import define, field

from inferno.contracts import LinkedInstance
from inferno_disaggregated.client import Asked, Client

MOST_KNOWN = 1 << 16
"""Blocks of which it is remembered that an instance has computed them: those asked for last."""


@define(eq=False)
class Instance:
    """One of them, as far as this end knows: others may have prompts computed there too."""

    client: Client
    usage: LinkedInstance = field(factory=LinkedInstance)
    _waiting: dict[int, float] = field(factory=dict)
    """By prompt, the tokens that it had to compute when it was asked."""
    _known: dict[bytes, None] = field(factory=dict)
    """Keys of blocks that its prefix cache may have, asked for longest ago first."""

    def ask(self, asked: Asked, keys: Sequence[bytes], num_tokens: int) -> None:
        number = asked.message.transfer
        self._waiting[number] = self._to_compute(keys, num_tokens)
        for key in reversed(keys):  # the end of a prompt is forgotten before its beginning
            self._known.pop(key, None)
            self._known[key] = None
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self.usage.prompts += 1
        self.client.ask(asked)

    def ended(self, number: int, keys: Sequence[bytes], cause: str) -> None:
        """Note that no more comes of a prompt, and why not all has."""
        self._waiting.pop(number, None)
        if cause:
            self.usage.failures[cause] = self.usage.failures.get(cause, 0) + 1
        if cause == "lost":  # it may have been started anew
            self._known.clear()
        elif cause not in ("", "short"):
            for key in keys:
                self._known.pop(key, None)

    def work(self, keys: Sequence[bytes], num_tokens: int) -> float:
        """Return the tokens that it has to compute until it is done with a prompt."""
        return sum(self._waiting.values()) + self._to_compute(keys, num_tokens)

    def _to_compute(self, keys: Sequence[bytes], num_tokens: int) -> float:
        num_known = next((i for i, key in enumerate(keys) if key not in self._known), len(keys))
        return num_tokens * (1 - num_known / max(1, len(keys)))

    def tell(self) -> None:
        """Write how it is now."""
        self.usage.connected, self.usage.waiting = self.client.joined, len(self._waiting)


def best(
    instances: Sequence[Instance],
    tried: Collection[Instance],
    keys: Sequence[bytes],
    num_tokens: int,
) -> Instance | None:
    """Return the connected instance that will be done with a prompt first, of those that were not
    tried: of equal ones that which got fewer prompts. None if there is none."""
    able = [each for each in instances if each.client.joined and each not in tried]
    return min(
        able, key=lambda each: (each.work(keys, num_tokens), each.usage.prompts), default=None
    )
