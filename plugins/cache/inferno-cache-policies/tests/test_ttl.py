"""What the policies by age keep."""

from __future__ import annotations

import pytest

from inferno.testing import CachePolicyTests, load_catalog
from inferno_cache_policies.ttl import AgeCache


class TestAge(CachePolicyTests):
    policy = "ttl-1h"
    max_examples = 60


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_what_was_idle_for_too_long_is_not_found(clock: list[float]) -> None:
    cache = AgeCache(8, ttl=10.0)
    for block, key in enumerate((b"a", b"b")):
        cache.insert(key, block)
    cache.release(1)
    clock[0] += 9
    cache.release(0)
    assert cache.match([b"a", b"b"]) == [0, 1]
    clock[0] += 2
    assert cache.match([b"a", b"b"]) == [0], "b was idle for 11 s"
    cache.touch(0)
    clock[0] += 1000
    assert cache.match([b"a"]) == [0], "it is used"
    assert cache.num_idle == 1 and cache.evict(3) == [1]


def test_an_old_block_that_is_computed_again_is_used_again(clock: list[float]) -> None:
    cache = AgeCache(8, ttl=10.0)
    cache.insert(b"a", 0)
    cache.release(0)
    clock[0] += 100
    assert cache.match([b"a"]) == [] and cache.insert(b"a", 1) == 0
    cache.touch(0)
    assert cache.match([b"a"]) == [0]


@pytest.mark.parametrize(("name", "ttl"), [("ttl-5m", 300), ("ttl-1h", 3600), ("ttl-24h", 86400)])
def test_the_name_has_the_time(name: str, ttl: float) -> None:
    cache = load_catalog().cache_policy(name).item.build(8)
    assert isinstance(cache, AgeCache) and cache.ttl == ttl


def test_none_is_the_default() -> None:
    assert load_catalog().cache_policy().item.name == "lru"
