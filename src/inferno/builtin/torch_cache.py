"""What the torch attention keeps of each token, and what it refuses. Apart from the kernel, so that
neither needs torch."""

from __future__ import annotations

from collections.abc import Mapping

from inferno.contracts import AttentionNeed, CacheTensor


def refuses(need: AttentionNeed) -> str | None:
    if need.num_heads % need.num_kv_heads:
        return (
            f"{need.num_heads} query heads do not divide among {need.num_kv_heads} key/value heads"
        )
    if need.latent_dim is not None and not 0 < need.latent_dim <= need.head_dim:
        return f"{need.latent_dim} numbers of a value are not within the {need.head_dim} of its key"
    return None


def layout(need: AttentionNeed, block_size: int) -> Mapping[str, CacheTensor]:
    """Token-major: a token's heads lie side by side, so that storing and gathering move whole
    rows."""
    keys = CacheTensor((block_size, need.num_kv_heads, need.head_dim), need.dtype)
    if need.latent_dim is not None:
        return {"k": keys}
    return {
        "k": keys,
        "v": CacheTensor((block_size, need.num_kv_heads, need.output_dim), need.dtype),
    }
