"""What `cost` keeps."""

from __future__ import annotations

from collections.abc import Sequence

from inferno.testing import CachePolicyTests
from inferno_cache_policies.cost import ATTENTION_DEPTH, CostCache


class TestCost(CachePolicyTests):
    policy = "cost"
    max_examples = 100


class Used:
    """A cache, and conversations that use it one after the other."""

    def __init__(self) -> None:
        self.cache, self._next = CostCache(10**6), 0
        self.name_of: dict[int, str] = {}

    def use(self, name: str, length: int, times: int = 1) -> None:
        """Compute a conversation's blocks, or find them."""
        keys = [f"{name}{i}".encode() for i in range(length)]
        for _ in range(times):
            blocks = self.cache.match(keys)
            for block in blocks:
                self.cache.touch(block)
            for i in range(len(blocks), length):
                blocks.append(self.cache.insert(keys[i], self._next, keys[i - 1] if i else None))
                self.name_of[self._next] = f"{name}{i}"
                self._next += 1
            for block in reversed(blocks):
                self.cache.release(block)

    def evict(self, count: int) -> Sequence[str]:
        return [self.name_of[block] for block in self.cache.evict(count)]


def test_what_is_used_often_outlives_what_is_used_later() -> None:
    used = Used()
    used.use("often", 3, times=3)
    used.use("once", 3)
    assert used.evict(3) == ["once2", "once1", "once0"]
    assert used.evict(9) == ["often2", "often1", "often0"]


def test_what_is_deep_outlives_what_is_shallow() -> None:
    used = Used()
    used.use("long", ATTENTION_DEPTH + 2)
    used.use("short", 3)
    assert used.evict(3) == ["short2", "short1", "short0"]
    assert used.evict(1) == [f"long{ATTENTION_DEPTH + 1}"]


def test_among_equals_the_one_idle_for_longest_goes_first() -> None:
    used = Used()
    used.use("a", 2)
    used.use("b", 2)
    used.use("c", 2)
    assert used.evict(6) == ["a1", "a0", "b1", "b0", "c1", "c0"]


def test_what_was_used_often_long_ago_goes_too() -> None:
    used = Used()
    used.use("old", 1, times=5)
    for i in range(20):
        used.use(f"new{i}-", 1)
        if "old0" in used.evict(1):
            return
    raise AssertionError("its worth never ages")


def test_a_block_waits_for_all_that_continues_it() -> None:
    cache = CostCache(8)
    for block, (key, parent) in enumerate({"a": None, "b": "a", "c": "a", "d": "c"}.items()):
        cache.insert(key.encode(), block, None if parent is None else parent.encode())
    for block in (0, 1, 2):
        cache.release(block)
    assert cache.evict(4) == [1] and cache.num_idle == 2, "d is used: a and c stay"
    cache.release(3)
    assert cache.evict(4) == [3, 2, 0]


def test_any_number_of_uses_takes_bounded_room() -> None:
    used = Used()
    used.use("a", 2, times=10_000)
    assert len(used.cache._leaves) < 200
    assert used.evict(2) == ["a1", "a0"]
