"""Tests of every sink of cache events: what is published arrives, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import evolve

from inferno.catalog import Catalog
from inferno.contracts import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    EventGroup,
    EventNeed,
    EventSink,
)
from inferno.errors import OptionError
from inferno.testing.installed import Installed

Received = Callable[[int], list[tuple[int, list[Any]]]]
"""received(count) -> the numbers and batches of so many messages, as decoded."""


class EventSinkTests(Installed):
    """Set `sink` to its registered name, `address` to make a URL, and `receiving` to read what is
    published there."""

    sink: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> EventSink:
        return catalog.named(EventSink, cls.sink).item

    def address(self, folder: Path) -> str:
        """Return a URL where it can publish."""
        raise NotImplementedError

    def bad_address(self, folder: Path) -> str:
        """Return a URL of its scheme where it cannot."""
        raise NotImplementedError

    def receiving(self, need: EventNeed) -> AbstractContextManager[Received]:
        """Subscribe to a publisher that exists."""
        raise NotImplementedError

    @pytest.fixture
    def need(self, tmp_path: Path) -> EventNeed:
        groups = EventGroup("full", None), EventGroup("window", 8)
        url = self.address(tmp_path)
        return EventNeed(url=url, topic="kv@here@toy", model="toy", block_size=2, groups=groups)

    def test_what_is_published_arrives_in_order(self, item: EventSink, need: EventNeed) -> None:
        publisher = item.build(need)
        batches = [numbered(i) for i in range(50)]
        with self.receiving(need) as received:
            assert all(publisher.publish(batch) for batch in batches)
            messages = received(len(batches))
        publisher.close()
        assert [number for number, _ in messages] == list(range(50))
        assert [len(events) for _, (_, events, *_) in messages] == [len(batch) for batch in batches]
        assert (publisher.published, publisher.dropped) == (50, 0)

    def test_nobody_listens_and_nothing_waits(self, item: EventSink, need: EventNeed) -> None:
        publisher = item.build(need)
        results = [publisher.publish(numbered(i)) for i in range(10_000)]
        assert (results.count(True), results.count(False)) == (
            publisher.published,
            publisher.dropped,
        )
        publisher.close()

    def test_what_is_published_after_its_end_is_dropped(
        self, item: EventSink, need: EventNeed
    ) -> None:
        publisher = item.build(need)
        publisher.close()
        publisher.close()
        assert not publisher.publish(numbered(0))
        assert (publisher.published, publisher.dropped) == (0, 1)

    def test_an_address_where_it_cannot_publish_is_named(
        self, item: EventSink, need: EventNeed, tmp_path: Path
    ) -> None:
        with pytest.raises(OptionError, match="--kv-events"):
            item.build(evolve(need, url=self.bad_address(tmp_path)))

    def test_another_scheme_is_refused(self, item: EventSink, need: EventNeed) -> None:
        assert item.refuses(need) is None
        assert "://" in (item.refuses(evolve(need, url="carrier-pigeon://loft")) or "")


def numbered(i: int) -> list[CacheEvent]:
    """Return events that differ by number."""
    keys = tuple(bytes([i % 256, j] * 8) for j in range(2))
    stored = BlocksStored(keys, None, (i, 1, 2, 3), "memory", i % 2, salt="s" * (i % 3))
    events: list[CacheEvent] = [stored, BlocksRemoved(keys[1:], "host", 0)]
    return [BlocksCleared(), *events] if i == 0 else events
