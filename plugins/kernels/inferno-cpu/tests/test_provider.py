"""The provider through the catalog, on whatever instruction set this machine chooses."""

from __future__ import annotations

from inferno.testing import AttentionBackendTests, KernelProviderTests


class TestCpu(KernelProviderTests):
    provider = "cpu"


class TestAttention(AttentionBackendTests):
    backend = "cpu"
    block_sizes = (16, 32)
