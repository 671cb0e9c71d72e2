"""What the native attention keeps of each token, and what it refuses. Imports no torch; the
kernel's caller is `attend.NativeAttend`.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, S sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

from inferno.contracts import AttentionNeed, CacheTensor

BLOCK_MULTIPLE = 16
"""Tokens of a panel (native/attention.hpp): blocks are whole panels."""

_CHANNELS = 16
"""Heads are read so many at a time."""

_MAX_HEAD_DIM = 256
_MAX_SHARE = 128

CACHE_DTYPES: Mapping[str, str] = {"fp8_e4m3": "float8_e4m3fn", "int8": "int8"}
"""The element types a cache may have besides the compute type, by `AttentionNeed.cache_dtype`; each
token's head has a scale of its own."""


def refuses(need: AttentionNeed) -> str | None:
    if need.device != "cpu":
        return f"it runs on the CPU, not on {need.device}"
    if need.num_heads % need.num_kv_heads:
        return (
            f"{need.num_heads} query heads do not divide among {need.num_kv_heads} key/value heads"
        )
    if need.num_heads > _MAX_SHARE * need.num_kv_heads:
        return f"more than {_MAX_SHARE} query heads share a key/value head"
    if need.head_dim % _CHANNELS or need.head_dim > _MAX_HEAD_DIM:
        return (
            f"heads must be a multiple of {_CHANNELS} wide and at most {_MAX_HEAD_DIM}, "
            f"not {need.head_dim}"
        )
    if need.sliding_window is not None and need.sliding_window < 1:
        return f"a window of {need.sliding_window} tokens holds not even the current one"
    if need.cache_dtype not in ("auto", *CACHE_DTYPES):
        return (
            f"it keeps keys and values as {', '.join(CACHE_DTYPES)} or as they are "
            f"computed, not as {need.cache_dtype}"
        )
    return None


def cache(need: AttentionNeed, block_size: int) -> Mapping[str, CacheTensor]:
    """Panels of sixteen tokens of one head, laid out as native/attention.hpp says; 8-bit numbers
    with a scale per token and head."""
    assert block_size % BLOCK_MULTIPLE == 0, "the backend declares its block_multiple"
    kind, heads, dim = need.cache_dtype, need.num_kv_heads, need.head_dim
    dtype = need.dtype if kind == "auto" else CACHE_DTYPES[kind]
    page = CacheTensor((heads, block_size // BLOCK_MULTIPLE, dim * BLOCK_MULTIPLE), dtype)
    if kind == "auto":
        return {"k": page, "v": page}
    scales = CacheTensor((heads, block_size), "float32")
    return {"k": page, "v": page, "k_scales": scales, "v_scales": scales}
