"""The reference attention keeps scores and weights in float32: one step of a prompt beside float64.

Suffixes: H query heads, K key/value heads, C head dim, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from inferno.builtin import torch_cache
from inferno.builtin.torch_attention import TorchAttend
from inferno.contracts import AttentionNeed, Device, DType
from inferno.testing import KVCache
from inferno.testing.naive_attention import exact
from inferno.testing.paged_steps import batch_of


def attended(need: AttentionNeed, qkv: Sequence[Tensor]) -> Tensor:
    """Return our outputs of a prompt."""
    length, block_size = len(qkv[0]), 16
    tables = [list(range(-(-length // block_size)))]
    cache = KVCache.allocate([torch_cache.layout(need, block_size)], len(tables[0]), "cpu")
    batch = batch_of([0], [0], [(0, length)], tables, block_size, "cpu")
    q_THC, k_TKC, v_TKC = qkv
    return TorchAttend(need)(q_THC, k_TKC, v_TKC, cache.layers[0], batch)


def need(dtype: DType, dim: int = 64) -> AttentionNeed:
    return AttentionNeed(
        num_heads=4,
        num_kv_heads=2,
        head_dim=dim,
        scale=dim**-0.5,
        dtype=dtype,
        device=Device("cpu"),
    )


@pytest.mark.parametrize("sharpness", [1.0, 20.0, 100.0])
@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_sharp_attention_loses_the_rounding_of_the_output_alone(
    dtype: DType, unit: float, sharpness: float
) -> None:
    generator, case = torch.Generator().manual_seed(0), need(dtype)
    q, k, v = (torch.randn(200, heads, 64, generator=generator) for heads in (4, 2, 2))
    qkv = [x.to(getattr(torch, dtype)) for x in (q * sharpness**0.5, k * sharpness**0.5, v)]
    theirs = exact(case, qkv, None, 0, 200)
    error = (attended(case, qkv).double() - theirs).abs()
    assert (error <= unit * theirs.abs() + 2e-4).all(), error.max()


def test_products_beyond_the_range_of_float16_are_finite() -> None:
    case = need("float16")
    q, k = torch.full((20, 4, 64), 40.0), torch.full((20, 2, 64), 40.0)
    k[::2] = -40.0  # a product of -102 400, and a score of -12 800
    v = torch.randn(20, 2, 64, generator=torch.Generator().manual_seed(0))
    qkv = [x.half() for x in (q, k, v)]
    error = (attended(case, qkv).double() - exact(case, qkv, None, 0, 20)).abs()
    assert error.max() <= 2e-3
