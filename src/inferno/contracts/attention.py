"""Attention: what a layer computes, what a backend is asked for, and what it offers.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, Self, get_args

import attrs
from attrs import field, frozen

from inferno.contracts import lazy

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn.batch import Batch

DType = Literal["float32", "bfloat16", "float16"]
"""Compute types, by torch's names."""
COMPUTE_DTYPES: tuple[DType, ...] = get_args(DType)

CacheDType = Literal["auto", "fp8_e4m3", "int8"]
"""Types of a key/value cache; auto is the compute type."""
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
class AttentionSpec:
    """What one attention layer computes, as its model says it.

    Fields with a default are *features*: a backend that does not list a feature in use is refused
    by the kernel, so a new one can never be ignored silently.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor on q·k before the softmax."""
    sliding_window: int | None = None
    """Attend to this many tokens, the current one included; None to all before it."""
    soft_cap: float | None = None
    """Scores become cap · tanh(score / cap)."""
    value_dim: int | None = None
    """Elements of a value's head, where it is not `head_dim`."""
    latent_dim: int | None = None
    """Multi-head latent attention (arXiv:2405.04434): values are the first `latent_dim` elements of
    the keys, and not stored."""
    sinks: bool = False
    """Each query head has a learned logit in its softmax that belongs to no token
    (arXiv:2309.17453)."""

    @property
    def output_dim(self) -> int:
        """Elements of a value's head, and of the output's."""
        return self.latent_dim or self.value_dim or self.head_dim

    @property
    def features(self) -> frozenset[str]:
        """Names of the optional features in use."""
        optional = [a for a in attrs.fields(type(self)) if a.default is not attrs.NOTHING]
        return frozenset(a.name for a in optional if getattr(self, a.name) != a.default)


@frozen(kw_only=True)
class AttentionNeed(AttentionSpec):
    """What a backend is asked for: a layer's spec, and what the plan decided about its place."""

    dtype: DType
    device: str
    cache_dtype: CacheDType = "auto"
    """What keys and values are stored as: auto is `dtype`; the others hold a scale beside each
    head's vector."""

    @classmethod
    def of(cls, spec: AttentionSpec, *, dtype: DType, device: str, cache_dtype: CacheDType) -> Self:
        """The need of a layer with this spec."""
        fields = {a.name: getattr(spec, a.name) for a in attrs.fields(AttentionSpec)}
        return cls(**fields, dtype=dtype, device=device, cache_dtype=cache_dtype)


@frozen
class CacheTensor:
    """One tensor a layer keeps for each block of tokens, or for each sequence: its shape for one of
    them, and its type."""

    shape: tuple[int, ...]
    dtype: str


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
    ) -> Tensor:
        """(T, H, C) -> (T, H, `need.output_dim`). `cache` holds the layer's tensors, each (blocks,
        *shape of one block). `sinks_H` is given where `need.sinks`."""
        ...


@frozen(kw_only=True)
class AttentionBackend:
    """An implementation of paged attention."""

    name: str
    refuses: Callable[[AttentionNeed], str | None] = field(converter=lazy.function)
    """Why it cannot serve the need, as a sentence, or None when it can. Imports no torch."""
    build: Callable[[AttentionNeed], Attend] = field(converter=lazy.function)
    cache: Callable[[AttentionNeed, int], Mapping[str, CacheTensor]] = field(
        converter=lazy.function
    )
    """cache(need, block_size) -> what a layer keeps per block: the backend owns the layout. Imports
    no torch."""
    features: frozenset[str] = frozenset()
    """The optional fields of AttentionNeed it honours. Needs with any other are refused for it."""
    block_size: int = 16
    """Tokens per block it likes best."""
    block_multiple: int = 1
    """Tokens per block must be a multiple of this; where others are asked for, it is refused."""
    priority: int = 0
    """The willing backend of the highest priority is taken."""
    api_version: int = 1
