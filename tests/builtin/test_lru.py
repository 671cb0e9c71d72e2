from __future__ import annotations

from inferno.builtin.lru import LRUPrefixCache
from inferno.catalog import load_catalog
from inferno.testing import CachePolicyTests


class TestLRU(CachePolicyTests):
    policy = "lru"
    max_examples = 150


def idle(cache: LRUPrefixCache, **blocks: int) -> None:
    for key, block in blocks.items():
        cache.insert(key.encode(), block)
        cache.release(block)


def test_the_block_idle_for_longest_goes_first() -> None:
    cache = LRUPrefixCache(8)
    idle(cache, a=3, b=1, c=2)
    cache.touch(3)
    cache.release(3)
    assert cache.evict(2) == [1, 2]
    assert cache.match([b"a"]) == [3] and cache.match([b"b"]) == []


def test_a_used_block_is_not_evicted_and_stays_findable() -> None:
    cache = LRUPrefixCache(8)
    idle(cache, a=3, b=1)
    cache.touch(1)
    assert cache.evict(8) == [3]
    assert cache.match([b"b"]) == [1] and cache.num_idle == 0


def test_a_match_ends_at_the_first_unknown_key() -> None:
    cache = LRUPrefixCache(8)
    idle(cache, a=3, c=1)
    assert cache.match([b"a", b"b", b"c"]) == [3]


def test_a_key_known_by_another_block_keeps_that_one() -> None:
    cache = LRUPrefixCache(8)
    cache.insert(b"a", 3)
    assert cache.insert(b"a", 5) == 3
    assert cache.contains(3) and not cache.contains(5)


def test_none_remembers_nothing() -> None:
    assert load_catalog().cache_policy("none").item.build(8) is None


def test_it_is_the_default() -> None:
    assert load_catalog().cache_policy().item.name == "lru"
