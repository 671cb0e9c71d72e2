"""The implementations of FlashAttention, what each refuses, and the cache that all read. Imports
neither torch nor the packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec

from attrs import frozen

from inferno.contracts import AttentionNeed, CacheTensor

_LEAST_CAPABILITY = (8, 0)
_MAX_HEAD_DIM = 256
_PAGED_TORCH = (2, 13)
"""The first torch whose attention of packed sequences reads block tables."""


@frozen(kw_only=True)
class Variant:
    """One implementation."""

    name: str
    missing: Callable[[], str | None]
    """Returns a sentence if the implementation is not installed."""
    majors: frozenset[int] | None = None
    """Major compute capabilities for which it is written; None: all from 8.0 on."""
    features: frozenset[str] = frozenset({"sliding_window", "soft_cap"})
    block_size: int
    block_multiple: int
    priority: int

    def refuses(self, need: AttentionNeed) -> str | None:
        device = need.device
        if device.kind != "cuda":
            return f"it runs on CUDA devices, not on {device}"
        if device.capability is None:
            return f"the driver does not tell the compute capability of {device}"
        level = "{}.{}".format(*device.capability)
        if device.capability < _LEAST_CAPABILITY:
            return f"it needs compute capability 8.0, {device} has {level}"
        if self.majors is not None and device.capability[0] not in self.majors:
            wanted = " or ".join(f"{major}.x" for major in sorted(self.majors))
            return f"it is written for compute capability {wanted}, {device} has {level}"
        if (reason := self.missing()) is not None:
            return reason
        if need.dtype not in ("float16", "bfloat16"):
            return f"it computes in float16 and bfloat16, not in {need.dtype}"
        if need.num_heads % need.num_kv_heads:
            return (
                f"{need.num_heads} query heads are not divisible by {need.num_kv_heads} "
                "key/value heads"
            )
        if need.head_dim % 8 or need.head_dim > _MAX_HEAD_DIM:
            return (
                f"the head dimension must be divisible by 8 and at most {_MAX_HEAD_DIM}, "
                f"not {need.head_dim}"
            )
        if need.sliding_window is not None and need.sliding_window < 1:
            return f"a window of {need.sliding_window} tokens excludes the current token"
        return None


def _missing_flash_attn() -> str | None:
    if find_spec("flash_attn") is None:
        return "the package flash-attn is not installed"
    return None


def _missing_flash_attn_3() -> str | None:
    if find_spec("flash_attn_interface") is None:
        return "FlashAttention 3 (the module flash_attn_interface) is not installed"
    return None


def _missing_paged_torch() -> str | None:
    build = version("torch")
    numbers = tuple(int(number) for number in re.findall(r"\d+", build)[:2])
    if numbers < _PAGED_TORCH:
        return f"torch {build} attends to packed sequences, but not through block tables: 2.13 does"
    return None


FLASH_3 = Variant(
    name="flash3",
    missing=_missing_flash_attn_3,
    majors=frozenset({9}),
    block_size=64,
    block_multiple=1,
    priority=30,
)
FLASH_2 = Variant(
    name="flash",
    missing=_missing_flash_attn,
    block_size=256,
    block_multiple=256,
    priority=15,
)
FLASH_TORCH = Variant(
    name="flash-torch",
    missing=_missing_paged_torch,
    features=frozenset({"sliding_window"}),
    block_size=256,
    block_multiple=256,
    priority=12,
)
VARIANTS = (FLASH_3, FLASH_2, FLASH_TORCH)


def cache(need: AttentionNeed, block_size: int) -> Mapping[str, CacheTensor]:
    """Return the tensors of one block, (heads, tokens, elements): the implementations take any
    strides, so the layout is that of other backends, which may compute single tokens."""
    tensor = CacheTensor((need.num_kv_heads, block_size, need.head_dim), need.dtype)
    return {"k": tensor, "v": tensor}
