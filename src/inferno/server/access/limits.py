"""An API key, and what its requests may use: how many run at once, and how many requests and tokens
per minute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field, frozen

from inferno.errors import LimitError, PermissionDeniedError
from inferno.server.access.usage import Used
from inferno.server.storage.quotas import Quota

Clock = Callable[[], float]


@define(eq=False)
class Bucket:
    """Amounts per minute: full at first, refilled steadily, and at most one minute's worth."""

    limit: int
    """Per minute."""
    clock: Clock = time.monotonic
    _level: float = field(init=False)
    _at: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._level, self._at = float(self.limit), self.clock()

    @property
    def level(self) -> float:
        """What is left in the bucket; negative if overdrawn."""
        now = self.clock()
        self._level = min(self.limit, self._level + (now - self._at) * self.limit / 60)
        self._at = now
        return self._level

    def take(self, amount: float) -> None:
        """Take an amount, into debt if it exceeds the level."""
        self._level = self.level - amount

    def seconds_until(self, amount: float) -> float:
        """Return the time until `amount` is available, or until the bucket is full if that is less;
        0 if it is available now."""
        missing = min(amount, self.limit) - self.level
        return max(0.0, missing * 60 / self.limit)


@define(eq=False)
class Usage(Used):
    """What a key's requests have used since the server started."""

    rejected: int = 0
    """Requests over a limit."""


@define(eq=False)
class Account:
    """One key's limits and usage. They are kept when the file of keys is read again."""

    name: str
    concurrency: int | None = None
    requests: Bucket | None = None
    tokens: Bucket | None = None
    running: int = 0
    usage: Usage = field(factory=Usage)

    def enter(self) -> None:
        """Count a request that starts, to be ended by `leave`. Raises LimitError."""
        if self.concurrency is not None and self.running >= self.concurrency:
            raise self._over(
                f"the key {self.name!r} has {self.running} requests running, the most it may",
                "Wait for one of them to end.",
                1,
            )
        if self.requests is not None:
            if wait := self.requests.seconds_until(1):
                raise self._over(
                    f"the key {self.name!r} may send {self.requests.limit} requests per minute",
                    f"Send the request again in {math.ceil(wait)} s.",
                    wait,
                )
            self.requests.take(1)
        self.running += 1
        self.usage.requests += 1

    def leave(self) -> None:
        self.running -= 1

    def take_prompt(self, tokens: int) -> None:
        """Count a prompt before it runs. A prompt of more than a minute's tokens waits until the
        bucket is full. Raises LimitError."""
        if self.tokens is not None:
            if wait := self.tokens.seconds_until(max(tokens, 1)):
                raise self._over(
                    f"the key {self.name!r} may use {self.tokens.limit} tokens per minute, and "
                    f"{max(0, int(self.tokens.level))} are left; the prompt has {tokens}",
                    f"Send the request again in {math.ceil(wait)} s.",
                    wait,
                )
            self.tokens.take(tokens)
        self.usage.prompt_tokens += tokens

    def take_generated(self, tokens: int) -> None:
        """Count generated tokens. They may put the key into debt: an answer is never cut off."""
        if self.tokens is not None:
            self.tokens.take(tokens)
        self.usage.completion_tokens += tokens

    def headers(self) -> dict[str, str]:
        """OpenAI's headers for the limits that the key has."""
        headers = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
                headers[f"x-ratelimit-reset-{name}"] = _duration(bucket.seconds_until(bucket.limit))
        return headers

    def limit(self, new: Account) -> None:
        """Take over another account's limits; what is left of those that have not changed stays."""
        self.concurrency = new.concurrency
        if not self._same(new.requests, self.requests):
            self.requests = new.requests
        if not self._same(new.tokens, self.tokens):
            self.tokens = new.tokens

    @staticmethod
    def _same(new: Bucket | None, old: Bucket | None) -> bool:
        return new is not None and old is not None and new.limit == old.limit

    def _over(self, cause: str, remedy: str, wait: float) -> LimitError:
        self.usage.rejected += 1
        error = LimitError(cause, remedy)
        error.headers = self._retry(wait)
        return error

    @staticmethod
    def _retry(wait: float) -> Mapping[str, str]:
        return {"Retry-After": str(max(1, math.ceil(wait)))}


@frozen(kw_only=True, eq=False)
class Key:
    """One API key. Only its digest is kept."""

    name: str
    """For logs, metrics and messages."""
    digest: bytes = field(repr=False)
    """Its SHA-256."""
    models: tuple[str, ...] = ()
    """Names of the models that it may use; empty for all."""
    priority: int | None = None
    """The best priority of its requests: the lowest number. None: any."""
    admin: bool = False
    """Whether it may load and unload models."""
    cache_group: str = ""
    """Keys of one group share cached prefixes; empty: it shares with no other key."""
    quota: Quota = Quota()
    """What it may store."""
    account: Account

    def cache_salt(self, salt: str) -> str:
        """Return the salt with which the engine computes a request of this key that has this salt
        of its own: who can reach a prefix would learn from `cached_tokens` what others asked."""
        group = f"group:{self.cache_group}" if self.cache_group else f"key:{self.digest.hex()}"
        return f"{group}@{salt}"  # a request's own salt has no @

    def may_use(self, names: Sequence[str]) -> bool:
        """Whether the key may use the model of these names."""
        return not self.models or bool(set(self.models) & set(names))

    def check_model(self, names: Sequence[str]) -> None:
        """Raise PermissionDeniedError if the key may not use the model of these names."""
        if not self.may_use(names):
            raise PermissionDeniedError(
                f"the key {self.name!r} may not use the model {names[0]!r}",
                f"It may use: {', '.join(self.models)}.",
            )


def _duration(seconds: float) -> str:
    """Format a time as OpenAI's headers do: `1s`, `6m0s`, `20ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
