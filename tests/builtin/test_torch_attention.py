from __future__ import annotations

from typing import ClassVar

import pytest

from inferno.catalog import load_catalog
from inferno.contracts import AttentionNeed, Device
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


def test_what_a_block_takes_is_keys_and_values() -> None:
    layout = load_catalog().attention(PLAIN, "torch").item.cache(PLAIN, 16)
    assert {name: (t.shape, t.dtype) for name, t in layout.items()} == {
        "k": ((16, 2, 16), "float32"),
        "v": ((16, 2, 16), "float32"),
    }
