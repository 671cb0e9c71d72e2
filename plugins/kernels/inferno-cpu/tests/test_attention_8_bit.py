"""Native attention over caches of int8 and fp8.

Suffixes: T packed tokens, K key/value heads, C head dim, L tokens of a sequence.
"""

from __future__ import annotations

import pytest
import torch
from attended import MIXED, TOLERANCE, Sequences, check, naive, need

from inferno_cpu import _native


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(2)


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_8_bit_caches_are_read_as_they_are_stored(kind: str, dtype: str) -> None:
    """Against attention in float64 over the stored values: what is lost is the rounding of the
    queries and of the weights, and fp8's subnormal numbers."""
    tolerance = {"float32": 5e-4, "bfloat16": 1e-2, "float16": 1e-3}[dtype]
    spec = need(6, 2, 64, dtype, cache_dtype=kind)
    sequences = Sequences(spec, [90])
    q, k, v = sequences.qkv[0]
    k[:, :, :8] *= 6.0  # outliers, beside which the others are few units
    v[20] *= 100.0
    for counts in [(70,), (1,), (19,)]:
        ours, _ = sequences.step(counts)
    stored = []
    for name in ("k", "v"):
        blocks = sequences.cache[name][sequences.tables[0][:6]].transpose(0, 1).flatten(1, 2)
        blocks_KNX = blocks.double() if kind == "int8" else blocks.float().double()
        if name == "k":  # [C / 2][16][2]
            x_KLC = blocks_KNX.unflatten(-1, (32, 16, 2)).permute(0, 1, 3, 2, 4).flatten(3)
        else:  # [C / 16][8][16][2]
            x_KLC = blocks_KNX.unflatten(-1, (4, 8, 16, 2)).permute(0, 1, 3, 5, 2, 4).flatten(4)
            x_KLC = x_KLC.flatten(2, 3)
        scales = sequences.cache[f"{name}_scales"][sequences.tables[0][:6]]
        scales_KL = scales.transpose(0, 1).flatten(1).double()
        stored.append((x_KLC.flatten(1, 2) * scales_KL[..., None]).transpose(0, 1)[:90])
    theirs = naive([q, *stored], 71, 90, spec)
    error = (ours.double() - theirs).abs() / (1 + theirs.abs().amax(-1, keepdim=True))
    assert error.max() <= tolerance, error.max()


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_spreads_from_8_bit_caches(kind: str, wrong: float) -> None:
    """To the tokens that see it, and to no others."""
    for which in range(3):
        sequences = Sequences(need(4, 2, 32, "bfloat16", cache_dtype=kind), [40])
        sequences.qkv[0][which][20, 0, 3] = wrong
        ours, _ = sequences.step((40,))
        seen = [20] if which == 0 else range(20, 40)
        bad = ours[:, 0].isnan().any(-1)
        assert bad.nonzero().flatten().tolist() == list(seen)
        assert not ours[:, 3].isnan().any(), "another head"


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_8_bit_caches(kind: str, dtype: str) -> None:
    """Scores err by the rounding of a key's element times the root of the head dim, values by their
    own rounding: a few percent."""
    tolerance = {"int8": 0.03, "fp8_e4m3": 0.12}[kind]
    totals = [sum(counts) for counts in zip(*MIXED, strict=True)]
    for heads, block_size in [((4, 2), 16), ((12, 1), 32)]:
        sequences = Sequences(
            need(*heads, dim=64, dtype=dtype, cache_dtype=kind), totals, block_size
        )
        for counts in MIXED:
            check(*sequences.step(counts), tolerance)


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
def test_8_bit_elements_are_the_nearest(kind: str) -> None:
    """The cache holds the row divided by its scale, rounded as torch does; zeros, tiny and huge
    values included."""
    attention_need = need(1, 1, 64, cache_dtype=kind)
    sequences = Sequences(attention_need, [16])
    q, k, v = sequences.qkv[0]
    v *= torch.logspace(-44, 37, 16)[:, None, None]
    v[3] = 0.0
    sequences.attend(q, k, v, sequences.cache, sequences.batch([(0, 0, 16)]))
    block = sequences.tables[0][0]
    scales = sequences.cache["v_scales"][block, 0].double()
    stored_CT = (
        sequences.cache["v"][block, 0, 0].view(4, 8, 16, 2).permute(1, 3, 0, 2).reshape(16, 64)
    )
    largest, dtype = (127.0, torch.int8) if kind == "int8" else (448.0, torch.float8_e4m3fn)
    top = v[:, 0].abs().amax(-1).double()
    usable = top > 2e-36
    torch.testing.assert_close(scales[usable], (top / largest)[usable], rtol=1e-5, atol=0.0)
    assert (scales[top == 0] == 0).all()
    over = (v[:, 0] * (largest / top)[:, None].float())[usable]
    expected = over.round().to(dtype) if kind == "int8" else over.to(dtype)
    same = stored_CT[usable].float() == expected.float()
    assert same.double().mean() > 0.99, "but for ties that the scale's own rounding decides"
