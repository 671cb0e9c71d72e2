from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from attrs import evolve

from inferno.attention.stored import Stored
from inferno.catalog import load_catalog
from inferno.contracts import AttentionNeed, Device
from inferno.errors import UnsupportedError
from inferno.testing import AttentionBackendTests

PLAIN = AttentionNeed(
    num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, dtype="float32", device=Device("cpu")
)


class TestTorchAttention(AttentionBackendTests):
    backend = "torch"
    runs_anywhere = True
    block_sizes = (1, 4, 16)
    tolerance: ClassVar[dict[str, float]] = {"float32": 1e-5, "bfloat16": 5e-3}

    def test_refuses_nothing_of_the_grid(self) -> None:
        """It is the reference: what it refuses nobody can be held against."""
        catalog = load_catalog()
        assert all(catalog.attention(need, "torch").item.name == "torch" for need in self.grid())

    @pytest.mark.slow
    def test_steps_taken_in_small_parts_change_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("inferno.attention.gathered._MAX_ELEMENTS", 50)
        catalog = load_catalog()
        self.test_equals_naive_attention(catalog.attention(PLAIN, "torch").item, catalog)


def test_keys_of_8_bits_with_waves_are_refused() -> None:
    need = evolve(PLAIN, cache_dtype="int8", waves=True)
    with pytest.raises(UnsupportedError) as caught:
        load_catalog().attention(need, "torch")
    assert "for latents only" in caught.value.remedy


def test_a_vector_of_zeros_is_zeros_in_8_bits() -> None:
    """It has no scale to divide by."""
    for dtype in (torch.int8, torch.float8_e4m3fn):
        cache = {"k": torch.ones(1, 4, 1, 8).to(dtype), "k_scales": torch.ones(1, 4, 1, 1)}
        Stored(torch.tensor([1])).store_vectors(cache, "k", torch.zeros(1, 1, 8))
        exact_BPKC = cache["k"].float() * cache["k_scales"]
        assert exact_BPKC.sum((0, 2, 3)).tolist() == [8, 0, 8, 8]


def test_what_a_block_takes_is_keys_and_values() -> None:
    layout = load_catalog().attention(PLAIN, "torch").item.cache(PLAIN, 16)
    assert {name: (t.shape, t.dtype) for name, t in layout.items()} == {
        "k": ((16, 2, 16), "float32"),
        "v": ((16, 2, 16), "float32"),
    }
