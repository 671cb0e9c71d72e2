"""What plugins provide: frozen declarations and the protocols behind them. No behaviour, no torch
at run time.

A declaration's callables may be given as `"package.module:name"`; they are imported when first
called, so that listing plugins costs nothing. Every declaration carries the `api_version` of its
hook (`hookspecs.HOOKS`); contracts grow by optional fields with defaults.
"""

from inferno.contracts.architectures import (
    MTP,
    Architecture,
    Model,
    ModelConfig,
    MTPModelConfig,
    Reranker,
)
from inferno.contracts.attention import (
    COMPUTE_DTYPES,
    DTYPE_BYTES,
    Attend,
    AttentionBackend,
    AttentionNeed,
    AttentionSpec,
    CacheDType,
    CacheTensor,
    DType,
    Waves,
)
from inferno.contracts.cache import CachePolicy, PrefixCache
from inferno.contracts.chat import (
    AddedToken,
    ChatFormat,
    ChatNeed,
    Delta,
    OutputFormat,
    OutputParser,
    ToolChoice,
    ToolWriter,
)
from inferno.contracts.checkpoints import (
    BareDecoder,
    Checkpoint,
    CheckpointView,
    HeldMatrix,
    QuantScheme,
    Refused,
    StoredMatrix,
    TensorInfo,
    TextAssets,
    peek,
    refusal_of,
    with_head,
    without,
)
from inferno.contracts.classifiers import classifier_of
from inferno.contracts.commands import Command
from inferno.contracts.declaration import Declaration
from inferno.contracts.device import Device, DeviceKind
from inferno.contracts.dialect import Dialect, RowJoin, RowSplit
from inferno.contracts.endpoints import Endpoints
from inferno.contracts.formats import CheckpointFormat
from inferno.contracts.grammars import (
    GrammarCompiler,
    GrammarProvider,
    MaskRequest,
    Matcher,
    Vocabulary,
)
from inferno.contracts.hints import Hint
from inferno.contracts.inversion import (
    StoredPlace,
    in_pairs,
    module_pattern,
    place_of,
    rotary_heads,
)
from inferno.contracts.kernels import (
    EXPERT_OPS,
    GROUPED,
    LINEAR,
    OPS,
    QUANTIZE,
    Capture,
    Captured,
    KernelNeed,
    KernelProvider,
    Recording,
    Uncaptured,
)
from inferno.contracts.layouts import TABLES, IntLayout, TableLayout, W8A8Layout, fp8_layout
from inferno.contracts.logits import LogitsProcessor, Processor, ProcessorContext
from inferno.contracts.mixes import DenseMatrices, Mixed, QuantMix
from inferno.contracts.packing import PackedParts, PackedPlace, Packing, Take
from inferno.contracts.proposers import (
    Drafter,
    DraftParts,
    DraftRequest,
    Lookahead,
    Proposer,
    Span,
)
from inferno.contracts.request_fields import FieldEffect, JSONType, RequestField
from inferno.contracts.rows import RowRange, RowsView, expert_rows
from inferno.contracts.sources import FetchOptions, Origin, Source
from inferno.contracts.states import StateSpec
from inferno.contracts.writers import (
    DenseCheckpoint,
    Encoding,
    Output,
    Piece,
    Scaling,
    Seen,
    WriteOptions,
    Writer,
    WrittenFile,
)
from inferno.request.structured_outputs import GrammarKind, GrammarSpec, ReasoningMarkers

__all__ = [
    "TABLES",
    "AddedToken",
    "Architecture",
    "Attend",
    "AttentionBackend",
    "AttentionNeed",
    "AttentionSpec",
    "COMPUTE_DTYPES",
    "BareDecoder",
    "CacheDType",
    "CachePolicy",
    "CacheTensor",
    "Capture",
    "Captured",
    "ChatFormat",
    "ChatNeed",
    "Checkpoint",
    "CheckpointFormat",
    "CheckpointView",
    "Command",
    "DTYPE_BYTES",
    "DenseMatrices",
    "Mixed",
    "DType",
    "Delta",
    "DenseCheckpoint",
    "Declaration",
    "Device",
    "DeviceKind",
    "Dialect",
    "DraftParts",
    "DraftRequest",
    "Drafter",
    "EXPERT_OPS",
    "Encoding",
    "Endpoints",
    "FetchOptions",
    "FieldEffect",
    "GROUPED",
    "GrammarCompiler",
    "GrammarKind",
    "GrammarProvider",
    "GrammarSpec",
    "HeldMatrix",
    "Hint",
    "IntLayout",
    "JSONType",
    "KernelNeed",
    "KernelProvider",
    "LINEAR",
    "LogitsProcessor",
    "Lookahead",
    "MTP",
    "MTPModelConfig",
    "MaskRequest",
    "Matcher",
    "Model",
    "ModelConfig",
    "OPS",
    "Origin",
    "Output",
    "QUANTIZE",
    "OutputFormat",
    "OutputParser",
    "PackedParts",
    "PackedPlace",
    "Packing",
    "Piece",
    "PrefixCache",
    "Processor",
    "ProcessorContext",
    "Proposer",
    "QuantMix",
    "QuantScheme",
    "ReasoningMarkers",
    "Recording",
    "RequestField",
    "Reranker",
    "RowJoin",
    "RowRange",
    "RowSplit",
    "RowsView",
    "Seen",
    "Source",
    "Span",
    "StateSpec",
    "Refused",
    "StoredMatrix",
    "StoredPlace",
    "Take",
    "TableLayout",
    "TensorInfo",
    "TextAssets",
    "ToolChoice",
    "ToolWriter",
    "Uncaptured",
    "Vocabulary",
    "Scaling",
    "W8A8Layout",
    "Waves",
    "WriteOptions",
    "Writer",
    "WrittenFile",
    "classifier_of",
    "expert_rows",
    "fp8_layout",
    "in_pairs",
    "module_pattern",
    "place_of",
    "peek",
    "refusal_of",
    "rotary_heads",
    "with_head",
    "without",
]
