"""What the scheduler asks of a store, where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from inferno.contracts import Mover, Placed, StoreIndex
from inferno.request.requests import EngineOutput, EngineStats, Request
from inferno.stores.sessions import NO_SESSIONS, NoSessions

if TYPE_CHECKING:
    from inferno.core.kvcache import CacheGroup, Match
    from inferno.core.types import Sequence as Sequence_
    from inferno.core.types import Step
    from inferno.stores.presence import Presence

log = logging.getLogger("inferno.engine")


class NoStore:
    """Where blocks are not stored. What `storing.Storing` says holds of its answers."""

    has_news = False
    """Whether there is anything to save or to load."""
    fetching: Mapping[str, Sequence_] = MappingProxyType({})
    """By request, sequences that wait for parts to come near."""
    index: StoreIndex | None = None
    mover: Mover | None = None
    sessions: NoSessions = NO_SESSIONS
    dropped: Collection[bytes] = ()
    """Blocks that the store that is opened next is to drop."""

    @property
    def is_asked(self) -> bool:
        """Whether another instance has asked for something."""
        return False

    @property
    def listens(self) -> int | None:
        """The descriptor on which an engine with nothing to do hears of it."""
        return None

    def serve(self, submit: Callable[[Request], object], abort: Callable[[str], object]) -> None:
        return None

    def answered(self, outputs: list[EngineOutput]) -> list[EngineOutput]:
        return outputs

    def extended(self, sequence: Sequence_, match: Match) -> Match | None:
        return match

    def missing(self, match: Match) -> Sequence[tuple[int, CacheGroup]]:
        return ()

    def load(
        self, sequence: Sequence_, missing: Iterable[tuple[int, CacheGroup]], *, alone: bool
    ) -> bool:
        return True

    def landed(self) -> Sequence[Sequence_]:
        return ()

    def computed(self, step: Step, seconds: float) -> None:
        return None

    def save(self, sequence: Sequence_, count: int) -> None:
        return None

    def vacate(self, sequence: Sequence_, *, resumes: bool = False) -> None:
        return None

    def release(self, owner: str) -> None:
        return None

    def forget(self, sequence: Sequence_) -> None:
        return None

    def come(self) -> Sequence[Sequence_]:
        return ()

    def take_news(self) -> tuple[tuple[Placed, ...], tuple[Placed, ...]]:
        return (), ()

    def take_last(self) -> tuple[Placed, ...]:
        return ()

    def drop_news(self) -> bool:
        return False

    def watch(self, presence: Presence) -> None:
        return None

    def drop(self, keys: Collection[bytes]) -> None:
        return None

    def gauge(self, stats: EngineStats) -> None:
        self.sessions.gauge(stats)

    @property
    def waits_for(self) -> int | None:
        return None

    def sleep(self) -> None:
        return None

    def close(self) -> None:
        return None


NO_STORE = NoStore()


class AsleepStore(NoStore):
    """Of an engine that sleeps: sessions can be looked at and ended."""

    dropped: set[bytes]

    @classmethod
    def of(cls, store: NoStore) -> AsleepStore:
        """Return what is left of a store that was closed."""
        asleep = cls()
        asleep.dropped, asleep.sessions = {*store.dropped}, store.sessions.move(asleep)
        return asleep

    def drop(self, keys: Collection[bytes]) -> None:
        self.dropped.update(keys)


@contextmanager
def unless_failed() -> Iterator[None]:
    """Context in which the last blocks are saved. An error is only logged: they can be computed."""
    try:
        yield
    except Exception as error:
        log.warning("the last blocks of requests were not saved, and will be computed: %s", error)
