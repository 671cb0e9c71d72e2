"""Cache layout and limits of the native attention, which `attend.NativeAttend` calls.

Imports no torch.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, S sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

from inferno.contracts import AttentionNeed, CacheTensor

BLOCK_MULTIPLE = 16
"""Tokens of a panel (native/attention.hpp): a block consists of whole panels."""

_LANES = 16
"""The head dimension must be divisible by this: the lanes of a vector."""

_MAX_HEAD_DIM = 256
_MAX_GROUP_SIZE = 128

CACHE_DTYPES: Mapping[str, str] = {"fp8_e4m3": "float8_e4m3fn", "int8": "int8"}
"""Element types of a cache other than the compute type, by `AttentionNeed.cache_dtype`. They have a
scale for each token and head."""


def refuses(need: AttentionNeed) -> str | None:
    if need.device.kind != "cpu":
        return f"it runs on the CPU, not on {need.device}"
    if need.num_heads % need.num_kv_heads:
        return (
            f"{need.num_heads} query heads are not divisible by {need.num_kv_heads} key/value heads"
        )
    if need.num_heads > _MAX_GROUP_SIZE * need.num_kv_heads:
        return f"more than {_MAX_GROUP_SIZE} query heads share a key/value head"
    if need.head_dim % _LANES or need.head_dim > _MAX_HEAD_DIM:
        return (
            f"the head dimension must be divisible by {_LANES} and at most {_MAX_HEAD_DIM}, "
            f"not {need.head_dim}"
        )
    if need.sliding_window is not None and need.sliding_window < 1:
        return f"a window of {need.sliding_window} tokens excludes the current token"
    if need.bidirectional and need.soft_cap is not None:
        return "bidirectional attention is computed without soft_cap"
    if need.cache_dtype not in ("auto", *CACHE_DTYPES):
        return (
            f"it stores keys and values as {', '.join(CACHE_DTYPES)} or in the compute type, "
            f"not as {need.cache_dtype}"
        )
    return None


def cache(need: AttentionNeed, block_size: int) -> Mapping[str, CacheTensor]:
    """Return the tensors of one block: panels of sixteen tokens of one head, as described in
    native/attention.hpp, and for 8-bit elements a scale per token and head. Bidirectional attention
    keeps nothing."""
    if need.bidirectional:
        return {}
    assert block_size % BLOCK_MULTIPLE == 0, "the backend declares its block_multiple"
    kind, heads, dim = need.cache_dtype, need.num_kv_heads, need.head_dim
    dtype = need.dtype if kind == "auto" else CACHE_DTYPES[kind]
    panels = CacheTensor((heads, block_size // BLOCK_MULTIPLE, dim * BLOCK_MULTIPLE), dtype)
    if kind == "auto":
        return {"k": panels, "v": panels}
    scales = CacheTensor((heads, block_size), "float32")
    return {"k": panels, "v": panels, "k_scales": scales, "v_scales": scales}
