"""Copies of whole places in the cache's tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inferno.contracts import CacheTensor
from inferno.core.kvcache import KVCache
from inferno.core.types import Copy, Move

GROUPS = ((0, 2), (1,))
PLACES = 6


def cache_of(dtype: str = "bfloat16") -> KVCache:
    """Two groups, whose places hold numbers of their own; the second has 3 bytes a place."""
    layouts = [
        {"k": CacheTensor((2, 4), dtype), "v": CacheTensor((2, 3), "float32")},
        {"state": CacheTensor((3,), "uint8")},
        {"k": CacheTensor((2, 4), dtype), "v": CacheTensor((2, 3), "float32")},
    ]
    cache = KVCache.allocate(layouts, PLACES, "cpu", GROUPS)
    for layer in cache.layers:
        for tensor in layer.values():
            values = torch.arange(1, tensor.numel() + 1) % 251
            tensor.copy_(values.view(tensor.shape).to(tensor.dtype))
    return cache


def places_of(cache: KVCache, group: int) -> list[bytes]:
    """The bytes of each place."""
    return [
        b"".join(bytes(piece[place].tolist()) for piece in cache.places[group].pieces)
        for place in range(PLACES)
    ]


@given(
    st.lists(
        st.builds(Move, st.just(0), st.integers(0, 1), *[st.integers(0, PLACES - 1)] * 2),
        max_size=8,
    )
)
def test_moves_happen_in_order(moves: list[Move]) -> None:
    check_moves(cache_of(), moves)
    on_a_device = cache_of()
    for places in on_a_device.places:
        places._arrays = None
    check_moves(on_a_device, moves)


def check_moves(cache: KVCache, moves: list[Move]) -> None:
    expected = [places_of(cache, group) for group in range(2)]
    cache.move(moves)
    for _, group, source, target in moves:
        expected[group][target] = expected[group][source]
    assert [places_of(cache, group) for group in range(2)] == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8"])
def test_copies_at_once_are_copies_one_by_one(dtype: str) -> None:
    one_by_one, at_once = cache_of(dtype), cache_of(dtype)
    copies = [Copy(0, 0, 3), Copy(1, 5, 0), Copy(0, None, 0), Copy(0, 1, 4), Copy(1, None, 2)]
    one_by_one.copy(copies)
    for group in range(2):
        at_once.places[group].copy_at_once([copy[1:] for copy in copies if copy.group == group])
        assert places_of(one_by_one, group) == places_of(at_once, group)
    assert (
        not any(places_of(at_once, 0)[0])
        and places_of(at_once, 0)[3] == places_of(cache_of(dtype), 0)[0]
    )
