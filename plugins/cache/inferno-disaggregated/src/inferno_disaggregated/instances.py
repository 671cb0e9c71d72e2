"""The instances that compute prompts for a decoding end, and which of them computes which
prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attrs import define, field

from inferno.contracts import LinkedInstance
from inferno_disaggregated.client import Asked, Client

MOST_KNOWN = 1 << 16
"""Most blocks of an instance that are remembered as computed there: those asked for last."""


@define(eq=False)
class Instance:
    """What this end knows of one of them, which may compute prompts for other ends too."""

    clients: tuple[Client, ...]
    """One, or one for each host of several machines: only one of these has the rank of this number,
    and the other clients stay unconnected."""
    usage: LinkedInstance = field(factory=LinkedInstance)
    _waiting: dict[int, float] = field(factory=dict)
    """By a prompt's number, the tokens of it that were to be computed when it was sent."""
    _known: dict[bytes, None] = field(factory=dict)
    """Keys of blocks that its prefix cache may have; first the one asked for longest ago."""

    @property
    def url(self) -> str:
        """Its first host's address."""
        return self.clients[0].url

    @property
    def client(self) -> Client:
        """The one that is connected, or the first."""
        return next((each for each in self.clients if each.joined), self.clients[0])

    def ask(self, asked: Asked, keys: Sequence[bytes], num_tokens: int) -> None:
        """Send it a prompt of `num_tokens` tokens, whose blocks have these keys."""
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
        """Note that no more of a prompt comes from here. `cause` says why not all has come; empty:
        all has, or is not needed any more."""
        self._waiting.pop(number, None)
        if cause:
            self.usage.failures[cause] = self.usage.failures.get(cause, 0) + 1
        if cause == "lost":  # the instance may start anew, with an empty cache
            self._known.clear()
        elif cause not in ("", "short"):
            for key in keys:
                self._known.pop(key, None)

    def work(self, keys: Sequence[bytes], num_tokens: int) -> float:
        """Return how many tokens it would compute until it is done with this prompt too."""
        return sum(self._waiting.values()) + self._to_compute(keys, num_tokens)

    def _to_compute(self, keys: Sequence[bytes], num_tokens: int) -> float:
        num_known = next((i for i, key in enumerate(keys) if key not in self._known), len(keys))
        return num_tokens * (1 - num_known / max(1, len(keys)))

    def tell(self) -> None:
        """Bring `usage` up to date, and forget what an instance that is away may have lost."""
        if not self.client.joined:
            self._known.clear()
        self.usage.connected, self.usage.waiting = self.client.joined, len(self._waiting)


def best(
    instances: Sequence[Instance],
    tried: Collection[Instance],
    keys: Sequence[bytes],
    num_tokens: int,
) -> Instance | None:
    """Return the connected instance that will be done with a prompt first, except those that were
    `tried`; of equal ones, the one that was sent fewer prompts. None: there is none."""
    able = [each for each in instances if each.client.joined and each not in tried]
    return min(
        able, key=lambda each: (each.work(keys, num_tokens), each.usage.prompts), default=None
    )
