"""The torch backend's cache layout and refusals, in a module that does not import torch."""

from __future__ import annotations

from collections.abc import Mapping

from inferno.contracts import AttentionNeed, CacheTensor


def refuses(need: AttentionNeed) -> str | None:
    if need.num_heads % need.num_kv_heads:
        return (
            f"{need.num_heads} query heads are not divisible by {need.num_kv_heads} key/value heads"
        )
    if need.latent_dim is not None and not 0 < need.latent_dim <= need.head_dim:
        return f"latent_dim {need.latent_dim} is not between 1 and head_dim {need.head_dim}"
    if need.index is not None and need.batch_invariant:
        return "the sums of an index's scores depend on the shape of a step"
    if need.bidirectional and (others := sorted(need.features & _CAUSAL)):
        return f"bidirectional attention is computed without {', '.join(others)}"
    return None


_CAUSAL = frozenset({"soft_cap", "latent_dim", "sinks", "batch_invariant", "index"})
"""Features that no model with bidirectional attention has, and a promise that torch cannot keep."""


def layout(need: AttentionNeed, block_size: int) -> Mapping[str, CacheTensor]:
    """Return a token-major layout: a token's heads are contiguous, so that storing and gathering
    move whole rows; the keys of an index are beside them. Bidirectional attention keeps
    nothing."""
    if need.bidirectional:
        return {}
    dims = {"k": (need.num_kv_heads, need.head_dim)}
    if need.latent_dim is None:
        dims["v"] = (need.num_kv_heads, need.output_dim)
    if need.index is not None and not need.index.shared:
        dims["index_k"] = (1, need.index.head_dim)
    return {name: CacheTensor((block_size, *dim), need.dtype) for name, dim in dims.items()}
