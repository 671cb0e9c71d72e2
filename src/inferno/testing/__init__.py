"""The conformance kit: contract tests for plugin authors. Subclass, name your thing, and pytest
does the rest.

    from inferno.testing import ArchitectureTests

    class TestTiny(ArchitectureTests):
        config = {"architectures": ["TinyForCausalLM"], "model_type": "tiny", ...}

Needs pytest and hypothesis, and transformers where it has the reference: `pip install
inferno[test]`.
"""

from __future__ import annotations

from inferno.testing.architecture import ArchitectureTests
from inferno.testing.attention import AttentionBackendTests
from inferno.testing.cache_policy import CachePolicyTests
from inferno.testing.checkpoint_format import CheckpointFormatTests
from inferno.testing.fake_runner import FakeRunner
from inferno.testing.kernels import KernelProviderTests
from inferno.testing.quant_scheme import QuantSchemeTests
from inferno.testing.source import SourceTests
from inferno.testing.tiny import Outcome, generate, randomize

__all__ = [
    "ArchitectureTests",
    "AttentionBackendTests",
    "CachePolicyTests",
    "CheckpointFormatTests",
    "FakeRunner",
    "KernelProviderTests",
    "Outcome",
    "QuantSchemeTests",
    "SourceTests",
    "generate",
    "randomize",
]
