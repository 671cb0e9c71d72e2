"""Variants of the attention of single tokens, for benchmarks."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from inferno.contracts import AttentionNeed, Device
from inferno_triton.attend import TritonAttend
from inferno_triton.chips import using
from inferno_triton.tiles import CHIPS, Work, tile_of
from inferno_triton.variants import variants

H200 = Device("cuda", name="NVIDIA H200", capability=(9, 0), shared_memory=232_448)


@pytest.mark.parametrize("work", ["tokens", "words", "latent"])
def test_variants_differ_from_the_table_in_one_way(work: Work) -> None:
    latent = 512 if work == "latent" else None
    need = AttentionNeed(
        num_heads=16,
        num_kv_heads=1 if latent else 8,
        head_dim=576 if latent else 128,
        scale=1.0,
        dtype="bfloat16",
        device=H200,
        latent_dim=latent,
        cache_dtype="int8" if work == "words" else "auto",
    )
    usual = tile_of(CHIPS["sm_90"], work, need.head_dim, 2, 64)
    with using(CHIPS["sm_90"]):
        builds = variants(need, 64)
    assert len(builds) > 8
    changes = set()
    for name, build in builds.items():
        attend = build()
        assert isinstance(attend, TritonAttend)
        tile = tile_of(attend.chip, work, need.head_dim, 2, 64)
        assert f"{tile.keys} keys, {tile.stages} stages, {tile.warps} warps" in name
        assert tile.keys <= 64, "no more than a block has"
        differs = [
            part
            for part in ("keys", "stages", "warps")
            if getattr(tile, part) != getattr(usual, part)
        ]
        differs += ["splits"] * (attend.chip.processors != CHIPS["sm_90"].processors)
        assert len(differs) <= 1
        changes.update(differs)
    assert changes == {"keys", "stages", "warps", "splits"}
