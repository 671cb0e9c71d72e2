"""What plugins provide: frozen declarations and the protocols behind them. No behaviour, no torch at run time.

A declaration's callables may be given as `"package.module:name"`; they are imported when first called, so that
listing plugins costs nothing. Every declaration carries the `api_version` of its hook (`hookspecs.API_VERSIONS`);
contracts grow by optional fields with defaults.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, O output features, I input features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs
from attrs import field, frozen

from inferno import lazy

if TYPE_CHECKING:
    from torch import Tensor, nn

    from inferno.batch import Batch
    from inferno.nn.weight import Weight

DType = Literal["float32", "bfloat16", "float16"]
"""Compute types, by torch's names."""

CacheDType = Literal["auto", "fp8_e4m3", "int8"]
"""Types of a key/value cache; auto is the compute type."""

DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


# --- architectures -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class AttentionNeed:
    """What one attention layer asks of a backend. Fields with a default are *features*: a backend that does not
    list a feature in use is refused by the kernel, so a new one can never be ignored silently."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor on q·k before the softmax."""
    dtype: DType = "float32"
    device: str = "cpu"
    sliding_window: int | None = None
    """Attend to this many tokens, the current one included; None to all before it."""
    soft_cap: float | None = None
    """Scores become cap · tanh(score / cap)."""
    cache_dtype: CacheDType = "auto"
    """What keys and values are stored as: auto is `dtype`; the others hold a scale beside each head's vector."""

    @property
    def features(self) -> frozenset[str]:
        """Names of the optional features this layer uses."""
        optional = [a for a in attrs.fields(type(self)) if a.default is not attrs.NOTHING]
        return frozenset(a.name for a in optional if getattr(self, a.name) != a.default) - {"dtype", "device"}


@runtime_checkable
class ModelConfig(Protocol):
    """What an architecture makes of `config.json`: whatever it likes, and these. It may also have `unused_tensors`, a
    tuple of name patterns (`*` matches anything) that checkpoints store and the model does not read."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest context, in tokens, that the model was made for."""
        ...

    def attention_needs(self) -> Sequence[AttentionNeed]:
        """One per attention layer, in the order of their layer ids; dtype and device are filled in by the plan."""
        ...


class Model(Protocol):
    """What an architecture builds: a torch module with two calls."""

    def __call__(self, batch: Batch) -> Tensor:
        """One step's final hidden states, (T, hidden), one row per packed token."""
        ...

    def logits(self, x_SD: Tensor) -> Tensor:
        """Hidden rows to logits, (S, vocab)."""
        ...


@frozen(kw_only=True)
class GgufNames:
    """How a GGUF file names an architecture: with it, the file reads as if it were the original checkpoint.

    GGUF names are those of llama.cpp's converters (gguf-py's `constants.py`); `{n}` in a path stands for a layer's number.
    """

    architecture: str
    """`general.architecture`, and the prefix of its metadata keys."""
    fields: Mapping[str, str]
    """Field of `config.json` -> metadata key without the prefix: {"hidden_size": "embedding_length"}. What a file does not
    store is left out of the config. The rotary base and scaling, the vocabulary's size, the dtype and whether the head is
    tied are every model's and need no entry."""
    modules: Mapping[str, str]
    """Module path in the file -> in the checkpoint: {"blk.{n}.attn_q": "model.layers.{n}.self_attn.q_proj"}."""
    rotary_pairs: Mapping[str, str] = field(factory=dict)
    """Modules (by their path in the file) whose rows are stored rotary pair by pair, (i, i + C/2) side by side, and the
    metadata key of their number of heads: {"blk.{n}.attn_q": "attention.head_count"}."""
    constants: Mapping[str, Any] = field(factory=dict)
    """Fields of `config.json` that are the same for every file of this architecture."""


@frozen(kw_only=True)
class Architecture:
    """A model the kernel can build.

    Module paths equal the checkpoint's tensor names (Hugging Face's): then no format and no scheme needs a map.
    """

    name: str
    """As in `config.json`'s "architectures"."""
    config: Callable[[Mapping[str, Any]], ModelConfig] = field(converter=lazy.function)
    """Reads the checkpoint's config (plain JSON). Imports no torch. Raises CheckpointError."""
    build: Callable[[Any], nn.Module] = field(converter=lazy.function)
    """The model of that config, on whatever device is current (the kernel builds on meta)."""
    gguf: GgufNames | None = None
    """How its GGUF files are named; None: it loads from its own dialect only."""
    api_version: int = 1


# --- checkpoints ---------------------------------------------------------------------------------------------------


@frozen
class TensorInfo:
    """A stored tensor as its header tells it."""

    dtype: str
    """By torch's names: "bfloat16", "uint8"."""
    shape: tuple[int, ...]
    nbytes: int


@frozen(kw_only=True)
class TextAssets:
    """What a checkpoint says about text. All optional: without a tokenizer a model still runs on token ids."""

    tokenizer_json: str | None = None
    """A `tokenizer.json` document, as text."""
    tokenizer_dir: str | None = None
    """Else a directory that transformers can make a fast tokenizer from."""
    tokenizer_config: Mapping[str, Any] = field(factory=dict)
    """`tokenizer_config.json`: names of special tokens, `add_bos_token`, `response_template`."""
    chat_template: str | None = None
    generation_config: Mapping[str, Any] = field(factory=dict)
    """`generation_config.json`: default sampling and `eos_token_id`."""


class Checkpoint(Protocol):
    """An opened checkpoint, speaking Hugging Face names whatever is on disk. Opening reads headers only."""

    @property
    def config(self) -> Mapping[str, Any]:
        """`config.json`, or what the format makes of its own metadata."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def text(self) -> TextAssets: ...

    def read(self, name: str) -> Tensor:
        """The tensor, in host memory; a view of the mapped file where the format can. The first call may import
        torch. Raises CheckpointError."""
        ...

    def close(self) -> None: ...


@frozen(kw_only=True)
class CheckpointFormat:
    """A way a model lies on disk."""

    name: str
    matches: Callable[[Path], bool] = field(converter=lazy.function)
    """Whether `path` is of this format, from names or first bytes only."""
    open: Callable[[Path, Sequence[Architecture]], Checkpoint] = field(converter=lazy.function)
    """open(path, architectures): reads and checks the headers. Imports no torch. A format with names of its own finds their
    translation in the installed architectures. Raises CheckpointError on anything damaged."""
    priority: int = 0
    api_version: int = 1


@frozen(kw_only=True)
class QuantScheme:
    """A layout of a stored matrix.

    A module's *parts* are the tensors stored under its path: {"weight"} when dense, {"qweight", "scales",
    "qzeros"} for GPTQ. They alone decide which scheme owns it.
    """

    name: str
    owns: Callable[[Mapping[str, TensorInfo], Mapping[str, Any]], bool] = field(converter=lazy.function)
    """owns(parts, quantization_config). Imports no torch."""
    load: Callable[..., Weight] = field(converter=lazy.function)
    """load(parts, *, quant_config, dtype) -> the Weight these tensors encode."""
    nbytes: Callable[[Mapping[str, TensorInfo], str], int] = field(converter=lazy.function)
    """nbytes(parts, dtype) -> bytes the loaded weight holds in memory. Imports no torch."""
    layout: str = ""
    """`Weight.layout` of what `load` gives: what a kernel is asked for. Empty: a plain matrix of the compute type."""
    pack: Callable[[Tensor], Weight] | None = field(default=None, converter=lazy.optional)
    """Encode a dense matrix: in-situ quantization. None where the scheme cannot."""
    priority: int = 0
    api_version: int = 1


# --- kernels -------------------------------------------------------------------------------------------------------

LINEAR = "linear"
OPS = ("rms_norm", "add_rms_norm", "norm_rope", "silu_mul", "gather", "argmax")
"""The ops a kernel may provide beside `linear`; `inferno.nn.ops` holds their meaning, as torch computes them."""


@frozen(kw_only=True)
class KernelNeed:
    """What one op is asked for."""

    op: str
    """`linear`, or one of `OPS`."""
    dtype: DType
    """Of the activations."""
    device: str
    """"cpu", "cuda"."""
    layout: str = ""
    """For `linear`, how the matrix is stored: a dtype's name, or a packed layout as its scheme calls it ("q4_k")."""


class Recording(Protocol):
    """A list of a provider's ops with the addresses they read and wrote."""

    def __enter__(self) -> Recording:
        """From now on every op of the provider is noted, after it has run."""
        ...

    def __exit__(self, *exception: object) -> None: ...

    def replay(self) -> None:
        """Run the ops again, on what lies at those addresses now."""
        ...


@frozen(kw_only=True)
class KernelProvider:
    """Faster implementations of named ops. What none provides, torch computes."""

    name: str
    ops: Mapping[str, Callable[..., Any]] = field(converter=lazy.functions)
    """Op -> the function, with the signature of `inferno.nn.ops`. `linear` is (*weights) -> one Weight that holds them stacked
    along the rows, in whatever layout it likes, or None when these do not go together; the caller then lets go of them."""
    refuses: Callable[[KernelNeed], str | None] = field(converter=lazy.function)
    """Why it cannot serve the need, as a sentence, or None when it can. Imports no torch."""
    record: Callable[[], Recording] | None = field(default=None, converter=lazy.optional)
    """A new recording, where the provider's ops, its attention backend's included, can be run again without Python."""
    priority: int = 0
    api_version: int = 1


# --- attention and cache -------------------------------------------------------------------------------------------


@frozen
class CacheTensor:
    """One tensor a layer keeps for each block of tokens: its shape for one block, and its type."""

    shape: tuple[int, ...]
    dtype: str


class Attend(Protocol):
    """Stores k and v in the cache, then attends."""

    def __call__(
        self, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, cache: Mapping[str, Tensor], batch: Batch
    ) -> Tensor:
        """(T, H, C) -> (T, H, C). `cache` holds the layer's tensors, each (blocks, *shape of one block)."""
        ...


@frozen(kw_only=True)
class AttentionBackend:
    """An implementation of paged attention."""

    name: str
    refuses: Callable[[AttentionNeed], str | None] = field(converter=lazy.function)
    """Why it cannot serve the need, as a sentence, or None when it can. Imports no torch."""
    build: Callable[[AttentionNeed], Attend] = field(converter=lazy.function)
    cache: Callable[[AttentionNeed, int], Mapping[str, CacheTensor]] = field(converter=lazy.function)
    """cache(need, block_size) -> what a layer keeps per block: the backend owns the layout. Imports no torch."""
    features: frozenset[str] = frozenset()
    """The optional fields of AttentionNeed it honours. Needs with any other are refused for it."""
    block_size: int = 16
    """Tokens per block it likes best."""
    block_multiple: int = 1
    """Tokens per block must be a multiple of this; where others are asked for, it is refused."""
    priority: int = 0
    """The willing backend of the highest priority is taken."""
    api_version: int = 1


class PrefixCache(Protocol):
    """Remembers which block holds which content. Knows ids and keys, no tokens and no tensors; the pool owns the
    blocks. A key names a full block's tokens *and everything before them* (`cache.extend_keys`).

    A kept block is *used* while some sequence holds it, else *idle*: still findable, and evictable.
    """

    @property
    def num_idle(self) -> int:
        """Blocks that `evict` could give back. Changes nothing."""
        ...

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known prefix of `keys`. Changes nothing; valid until the next `evict`."""
        ...

    def keep(self, key: bytes, block_id: int) -> int:
        """Remember a full, used block. Returns the block that holds the key from now on: `block_id`, or one that
        was known before, in which case nothing changes and the caller uses that one."""
        ...

    def keeps(self, block_id: int) -> bool:
        """Whether the block is remembered. Changes nothing."""
        ...

    def use(self, block_id: int) -> None:
        """The idle block is used again: it can no longer be evicted."""
        ...

    def release(self, block_id: int) -> None:
        """No sequence uses the kept block any more: it becomes idle. A sequence's blocks come last to first."""
        ...

    def evict(self, count: int) -> list[int]:
        """Forget `count` idle blocks (all, when fewer), least useful first and never one whose continuation is still
        kept; returns them."""
        ...

    def clear(self) -> list[int]:
        """Forget every idle block; returns them."""
        ...


@frozen(kw_only=True)
class CachePolicy:
    """A prefix cache by name. The one of the highest priority is the default."""

    name: str
    build: Callable[[int], PrefixCache | None] = field(converter=lazy.function)
    """build(num_blocks); None remembers nothing. Imports no torch."""
    priority: int = 0
    api_version: int = 1


# --- sources -------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class FetchOptions:
    """How a source may fetch."""

    revision: str | None = None
    offline: bool = False
    """Use what is on this machine already."""
    progress: bool = False
    """Draw progress bars on stderr."""


@frozen(kw_only=True)
class Source:
    """A place a model reference is looked for."""

    name: str
    describe: str
    """What references of it look like, for "not found" errors: "a directory or file on this machine"."""
    matches: Callable[[str], bool] = field(converter=lazy.function)
    """Whether the reference is of this source, from its form and what is on this machine only."""
    fetch: Callable[[str, FetchOptions], Path] = field(converter=lazy.function)
    """The reference as a local path. Raises ModelNotFoundError. Imports no torch."""
    list: Callable[[], Collection[str]] = field(factory=lambda: tuple, converter=lazy.function)
    """References this source can name without asking a network."""
    priority: int = 0
    api_version: int = 1
