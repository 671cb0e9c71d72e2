"""Attention: a layer's spec, the need that a backend must serve, and the backend's declaration.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, W waves, L lines, N
positions, J heads of an index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, Self, get_args

import attrs
from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.device import Device

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn.batch import Batch

DType = Literal["float32", "bfloat16", "float16"]
"""Compute dtypes, by torch's names."""
COMPUTE_DTYPES: tuple[DType, ...] = get_args(DType)

CacheDType = Literal["auto", "fp8_e4m3", "int8"]
"""Dtypes of a key/value cache; auto is the compute dtype."""
DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


@frozen(kw_only=True)
class IndexSpec:
    """The index by which a layer finds the positions that a query attends to (DeepSeek-V3.2,
    arXiv:2512.02556): the `top_k` with the highest scores among those that it could attend to, or
    all of them if there are fewer. Ties go to the earlier position. Each position n has an index
    key, which is cached beside attention's keys and values, and for a token t the score

        sum over j of weights[t, j] * max(0, q[t, j] · k[n])
    """

    num_heads: int
    head_dim: int
    """Elements of a position's key, one for all heads."""
    top_k: int
    """How many positions a query attends to at most."""
    shared: bool = False
    """Whether the layer has no index, and attends to the positions that the last one with an index
    found in this step."""


@frozen(kw_only=True)
class AttentionSpec:
    """One attention layer's computation, as its model declares it.

    Fields with a default are *features*. The kernel refuses a backend that does not list a feature
    in use, so that a new one is never silently ignored.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor applied to q·k before the softmax."""
    sliding_window: int | None = None
    """Number of tokens attended to, the current one included; None: all. If `bidirectional`, as
    many on either side, each with the current one."""
    soft_cap: float | None = None
    """Scores become cap · tanh(score / cap)."""
    value_dim: int | None = None
    """Elements per value head, if not `head_dim`."""
    latent_dim: int | None = None
    """Multi-head latent attention (arXiv:2405.04434): values are the first `latent_dim` elements of
    the keys, and are not stored."""
    sinks: bool = False
    """Each query head's softmax has an extra, learned logit that belongs to no token
    (arXiv:2309.17453)."""
    bidirectional: bool = False
    """Tokens attend to later ones, too. Then nothing of a prompt can be computed before the rest:
    each is one step's, whole, and no layer keeps anything of it. Of a model's layers, all or
    none are."""
    attention_chunk: int | None = None
    """Tokens attend to those of their own chunk only, up to themselves: chunks of as many tokens
    follow each other from a sequence's first token on. No backend knows of it (`BY_STEP`)."""
    index: IndexSpec | None = None
    """A query attends to the positions that an index finds for it, not to all."""

    @property
    def output_dim(self) -> int:
        """Elements per head of the values and of the output."""
        return self.latent_dim or self.value_dim or self.head_dim

    @property
    def features(self) -> frozenset[str]:
        """Names of the optional features in use."""
        optional = [a for a in attrs.fields(type(self)) if a.default is not attrs.NOTHING]
        return frozenset(a.name for a in optional if getattr(self, a.name) != a.default)


@frozen(kw_only=True)
class AttentionNeed(AttentionSpec):
    """What a backend must serve: a layer's spec, with the dtypes and the device that the plan
    chose."""

    dtype: DType
    device: Device
    cache_dtype: CacheDType = "auto"
    """Dtype of the stored keys and values: auto is `dtype`; the others store a scale with each
    head's vector."""
    waves: bool = False
    """Whether `Attend` may be given `Waves`: where keys are rounded by their largest element, what
    is constant in them is better left out."""
    batch_invariant: bool = False
    """Whether a token's output must be the same bits whatever else is in the step, however its
    sequence was cut into steps, and with any number of threads."""

    @classmethod
    def of(
        cls,
        spec: AttentionSpec,
        *,
        dtype: DType,
        device: Device,
        cache_dtype: CacheDType,
        batch_invariant: bool = False,
    ) -> Self:
        """Return the need of a layer with this spec."""
        fields = {a.name: getattr(spec, a.name) for a in attrs.fields(AttentionSpec)}
        cache_dtype = "auto" if spec.bidirectional else cache_dtype  # it has no cache
        # Waves go by a key's position in its sequence, not in its chunk.
        whole = spec.attention_chunk is None
        waves = cache_dtype != "auto" and spec.latent_dim is None and whole
        return cls(
            **fields,
            dtype=dtype,
            device=device,
            cache_dtype=cache_dtype,
            waves=waves,
            batch_invariant=batch_invariant,
        )


BY_STEP = frozenset({"attention_chunk"})
"""Fields of a need that no backend must list: what a backend is given of a step follows from them
(`nn.in_chunks`). One with `begin` is refused."""


@frozen
class CacheTensor:
    """A tensor that a layer keeps for each block of tokens, or for each sequence: shape and dtype
    of one entry."""

    shape: tuple[int, ...]
    dtype: str


@frozen(eq=False)
class Waves:
    """What is added to the scores for a constant part of the keys that is not in the cache, such as
    a large bias.

    Rotated by its position, a constant pair of channels is a cosine and a sine of the position, and
    so is its product with a query. Before it is scaled, the score of query head h of token t and
    the key at position n gets

        sum over w of amplitudes[t, h, w] * lines[used[k, w], n]

    where k is the key/value head of h.
    """

    amplitudes_THW: Tensor
    """float32, contiguous."""
    used_KW: Tensor
    """int32, contiguous."""
    lines_LN: Tensor
    """float32; positions are contiguous, a multiple of 16. Those that no sequence has reached may
    hold anything."""


@frozen(eq=False)
class Indexed:
    """What a step's tokens bring to the index of a layer (`IndexSpec`)."""

    k_TC: Tensor
    """Stored with what attention stores, in the compute type."""
    q_TJC: Tensor | None = None
    """None where no sequence of the step has more than `top_k` tokens: all are attended to."""
    weights_TJ: Tensor | None = None
    """float32, or None as `q_TJC` is."""


class Attend(Protocol):
    """Stores k and v in the cache, then attends."""

    def __call__(
        self,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
        sinks_H: Tensor | None = None,
        waves: Waves | None = None,
    ) -> Tensor:
        """Return the output, (T, H, `need.output_dim`). `cache` holds the layer's tensors, each
        (blocks, *shape of one block). `sinks_H` is given if `need.sinks`, `waves` only if
        `need.waves`. If `need.bidirectional`, the step has all tokens of its sequences, and there
        is nothing to store.

        A token of slot -1 is not stored. It is a padding row, of length 0: it attends to nothing,
        and its output is finite but arbitrary. In a captured step (`batch.captured`) any row may
        become one, and values may depend on tensors only.
        """
        ...


class IndexedAttend(Attend, Protocol):
    """That of a layer with an index (`AttentionSpec.index`)."""

    def __call__(
        self,
        q_THC: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        cache: Mapping[str, Tensor],
        batch: Batch,
        sinks_H: Tensor | None = None,
        waves: Waves | None = None,
        indexed: Indexed | None = None,
    ) -> Tensor:
        """As `Attend`, over the positions that the index finds; its keys are stored, too. `indexed`
        is given unless the index is another layer's (`IndexSpec.shared`)."""
        ...


@frozen(kw_only=True)
class AttentionBackend:
    """An implementation of paged attention."""

    name: str
    refuses: Callable[[AttentionNeed], str | None] = field(converter=lazy.function)
    """Returns a sentence that says why it cannot serve the need, or None if it can. Imports no
    torch."""
    build: Callable[[AttentionNeed], Attend] = field(converter=lazy.function)
    cache: Callable[[AttentionNeed, int], Mapping[str, CacheTensor]] = field(
        converter=lazy.function
    )
    """cache(need, block_size) -> the tensors that a layer keeps per block: the backend owns the
    layout. Imports no torch."""
    begin: Callable[[AttentionNeed, Batch], None] | None = field(
        default=None, converter=lazy.optional
    )
    """begin(need, batch), called for each need before every forward pass, and before a captured one
    runs again: work that must not be captured, such as a schedule made from the lengths on the
    host. In a captured step, `batch` has the tensors of the capture, and the lengths of this
    step."""
    features: frozenset[str] = frozenset()
    """Optional fields of AttentionNeed that it implements. The kernel refuses it for needs with any
    other."""
    block_size: int = 16
    """Preferred number of tokens per block."""
    block_multiple: int = 1
    """Tokens per block must be divisible by this; otherwise the backend is refused."""
    layout: str = ""
    """Name of the cache layout. Two backends with the same one, whose `cache` is equal for a need,
    may serve the same layer: one its prompts, the other its single tokens. Empty: no other backend
    reads it."""
    captures_prompts: bool = False
    """Whether a captured step may have sequences of several tokens: their starts and lengths are
    read from the batch's tensors alone, and padding tokens, whose sequence has length 0, cost next
    to nothing."""
    priority: int = 0
    """Among the backends that do not refuse, the highest priority wins."""
    api_version: int = 1
