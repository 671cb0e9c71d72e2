"""The provider through the catalog, on each instruction set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from inferno.contracts import AttentionNeed, AttentionSpec, Device
from inferno.nn import Dense
from inferno.testing import AttentionBackendTests, KernelProviderTests
from inferno_cpu import _native, attend, linear, packing

pytestmark = pytest.mark.usefixtures("isa")


def test_instruction_sets_are_selected_by_name(isa: str) -> None:
    assert _native.selected() == isa and _native.available()[-1] == "portable"
    with pytest.raises(ValueError, match="cannot run avx9"):
        _native.select("avx9")
    assert _native.selected() == isa


class TestCpu(KernelProviderTests):
    provider = "cpu"
    linear_tolerance = 6.0  # activations are rounded to int8 in groups of 32


class TestAttention(AttentionBackendTests):
    backend = "cpu"
    block_sizes = (16, 32)
    same_bits = True


def test_the_limit_of_each_type_is_measured() -> None:
    assert all(_native.peak(type) > 1e6 for type in ("float32", "bfloat16", "int8"))
    with pytest.raises(ValueError, match="float8"):
        _native.peak("float8")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    _native.set_threads(1)
    yield
    torch.set_num_threads(before)


def test_kernels_run_on_as_many_threads_as_torch(two_threads: None) -> None:
    """However a model gets them: from packed weights on disk too, where nothing is stacked."""
    weight = linear.stack(Dense(torch.zeros(32, 64)))
    assert _native.threads() == 2 and weight is not None
    _native.set_threads(1)
    pair = packing.save(weight)
    assert pair is not None
    packing.load(pair[0], pair[1][0])
    assert _native.threads() == 2
    _native.set_threads(1)
    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=0.25)
    need = AttentionNeed.of(spec, dtype="float32", device=Device("cpu"), cache_dtype="auto")
    attend.build(need)
    assert _native.threads() == 2
