"""The conformance kit: contract tests for plugin authors. Subclass a class, name your declaration,
and run pytest.

    from inferno.testing import ArchitectureTests

    class TestTiny(ArchitectureTests):
        config = {"architectures": ["TinyForCausalLM"], "model_type": "tiny", ...}

Helpers for a plugin's own tests: `load_toy` loads a model through the real engine, `plan_of` makes
its plan, `write_gguf` its GGUF file, and `torch_only` is the catalog without native kernels.
`write_twins` writes a quantized checkpoint and one with its values, for `assert_same_tokens`.

Needs pytest, hypothesis and safetensors: `pip install inferno[testing]`.
"""

from __future__ import annotations

from inferno.catalog import Catalog, load_catalog
from inferno.core.kvcache import KVCache
from inferno.testing.alike import alike, in_turn
from inferno.testing.architecture import ArchitectureTests
from inferno.testing.attention import AttentionBackendTests
from inferno.testing.audio import AudioTests, sound
from inferno.testing.batch_invariance import BatchInvariantTests
from inferno.testing.block_store import StoreTests
from inferno.testing.cache_policy import CachePolicyTests
from inferno.testing.chat_format import ChatFormatTests
from inferno.testing.checkpoint_format import CheckpointFormatTests
from inferno.testing.command import CommandTests
from inferno.testing.communicators import CommunicatorTests
from inferno.testing.converting import convert
from inferno.testing.encoder import EncoderTests
from inferno.testing.encoder_file import DeepEncoderFileTests, EncoderFileTests
from inferno.testing.endpoints import EndpointsTests
from inferno.testing.event_sink import EventSinkTests
from inferno.testing.executor import ExecutorTests, MachineExecutorTests
from inferno.testing.expert_engines import ExpertEngineTests
from inferno.testing.expert_ranks import ExpertRankTests
from inferno.testing.fake_runner import FakeRunner
from inferno.testing.gguf import gguf_dialect, write_gguf
from inferno.testing.grammars import GrammarProviderTests
from inferno.testing.host_experts import HostExpertTests
from inferno.testing.images import ImageTests, SeeingToy, picture_file
from inferno.testing.kernels import KernelProviderTests
from inferno.testing.link_store import LinkTests
from inferno.testing.mtp import MTPTests, proposals
from inferno.testing.pipelines import PipelineTests
from inferno.testing.pooled import embedded
from inferno.testing.quant_scheme import QuantSchemeTests, stored_matrix
from inferno.testing.quant_twins import (
    TOY_MOE_SIZES,
    TOY_SIZES,
    Encoded,
    assert_kernels,
    assert_near,
    assert_refused,
    assert_same_in_ranks,
    assert_same_tokens,
    change_quant_config,
    random_tensors,
    write_twins,
)
from inferno.testing.queue_policy import QueuedRun, QueuePolicyTests
from inferno.testing.ranks import RankTests
from inferno.testing.record_store import RecordStoreTests
from inferno.testing.reference import reference_logits, transformers_model
from inferno.testing.sandbox import SandboxTests
from inferno.testing.session_keeper import SessionKeeperTests
from inferno.testing.source import SourceTests
from inferno.testing.spelling import SpellingTests, joined, renamed
from inferno.testing.store_beside import StoreBesideTests
from inferno.testing.text_part import TINY_TEXT, TextPartTests
from inferno.testing.tiny import (
    Outcome,
    Toy,
    count_tensors,
    generate,
    load_toy,
    plan_of,
    ragged_prompts,
    randomize,
    run_python,
    torch_only,
)
from inferno.testing.trained import (
    trained_hidden,
    trained_logits,
    trained_matrix,
    trained_products,
)
from inferno.testing.trained_weights import TrainedTests, like_trained
from inferno.testing.updates import UpdateTests
from inferno.testing.writer import WriterTests, skewed_model
from inferno.text import ChatTemplate, Tokenizer, with_written_tools
from inferno.text.tokenizer import eos_token_ids
from inferno.weights.pairing import checkpoint_path

__all__ = [
    "TINY_TEXT",
    "TOY_MOE_SIZES",
    "TOY_SIZES",
    "ArchitectureTests",
    "AttentionBackendTests",
    "BatchInvariantTests",
    "CachePolicyTests",
    "Catalog",
    "ChatFormatTests",
    "ChatTemplate",
    "CheckpointFormatTests",
    "CommandTests",
    "CommunicatorTests",
    "DeepEncoderFileTests",
    "Encoded",
    "EncoderFileTests",
    "EncoderTests",
    "EndpointsTests",
    "EventSinkTests",
    "ExecutorTests",
    "ExpertEngineTests",
    "ExpertRankTests",
    "HostExpertTests",
    "FakeRunner",
    "GrammarProviderTests",
    "AudioTests",
    "ImageTests",
    "KVCache",
    "KernelProviderTests",
    "LinkTests",
    "MachineExecutorTests",
    "MTPTests",
    "Outcome",
    "QuantSchemeTests",
    "QueuePolicyTests",
    "QueuedRun",
    "PipelineTests",
    "RankTests",
    "RecordStoreTests",
    "SandboxTests",
    "SeeingToy",
    "SessionKeeperTests",
    "SourceTests",
    "SpellingTests",
    "StoreBesideTests",
    "StoreTests",
    "Tokenizer",
    "TextPartTests",
    "Toy",
    "TrainedTests",
    "UpdateTests",
    "WriterTests",
    "alike",
    "assert_kernels",
    "assert_near",
    "assert_refused",
    "assert_same_in_ranks",
    "assert_same_tokens",
    "change_quant_config",
    "checkpoint_path",
    "convert",
    "embedded",
    "count_tensors",
    "eos_token_ids",
    "generate",
    "gguf_dialect",
    "joined",
    "in_turn",
    "like_trained",
    "load_catalog",
    "load_toy",
    "plan_of",
    "proposals",
    "picture_file",
    "sound",
    "ragged_prompts",
    "random_tensors",
    "randomize",
    "reference_logits",
    "renamed",
    "run_python",
    "skewed_model",
    "stored_matrix",
    "torch_only",
    "trained_hidden",
    "trained_logits",
    "trained_matrix",
    "trained_products",
    "transformers_model",
    "with_written_tools",
    "write_gguf",
    "write_twins",
]
