"""The torch backend's cache layout and refusals, in a module that does not import torch."""

from __future__ import annotations

from collections.abc import Mapping

from inferno.contracts import AttentionNeed, CacheTensor

CACHE_DTYPES: Mapping[str, str] = {"fp8_e4m3": "float8_e4m3fn", "int8": "int8"}
"""Element types of a cache other than the compute type, by `AttentionNeed.cache_dtype`."""


def refuses(need: AttentionNeed) -> str | None:
    if need.num_heads % need.num_kv_heads:
        return (
            f"{need.num_heads} query heads are not divisible by {need.num_kv_heads} key/value heads"
        )
    if need.latent_dim is not None and not 0 < need.latent_dim <= need.head_dim:
        return f"latent_dim {need.latent_dim} is not between 1 and head_dim {need.head_dim}"
    if need.waves:
        return "its 8-bit caches are for latents only, not for keys from which waves are left out"
    if need.cache_dtype not in ("auto", *CACHE_DTYPES):
        return f"it stores {', '.join(CACHE_DTYPES)} or the compute type, not {need.cache_dtype}"
    if need.bidirectional and (others := sorted(need.features & _CAUSAL)):
        return f"bidirectional attention is computed without {', '.join(others)}"
    return None


_CAUSAL = frozenset({"soft_cap", "latent_dim", "sinks", "batch_invariant", "index"})
"""Features that no model with bidirectional attention has, and a promise that torch cannot keep."""


def layout(need: AttentionNeed, block_size: int) -> Mapping[str, CacheTensor]:
    """Return a token-major layout: a token's heads are contiguous, so that storing and gathering
    move whole rows. An 8-bit cache has a scale for each head of a token, and the keys of an index
    in the compute type, because they decide what is found. Bidirectional attention keeps
    nothing."""
    if need.bidirectional:
        return {}
    dims = {"k": (need.num_kv_heads, need.head_dim)}
    if need.latent_dim is None:
        dims["v"] = (need.num_kv_heads, need.output_dim)
    dtype = CACHE_DTYPES.get(need.cache_dtype, need.dtype)
    tensors = {name: CacheTensor((block_size, *dim), dtype) for name, dim in dims.items()}
    if need.cache_dtype != "auto":
        scales = CacheTensor((block_size, need.num_kv_heads, 1), "float32")
        tensors |= {f"{name}_scales": scales for name in dims}
    if need.index is not None and not need.index.shared:
        tensors["index_k"] = CacheTensor((block_size, 1, need.index.head_dim), need.dtype)
    return tensors
