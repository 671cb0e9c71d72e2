"""Rows of a plan about attention: what computes it, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from inferno.host import format_bytes

if TYPE_CHECKING:
    from inferno.contracts import AttentionNeed
    from inferno.plan import AttentionUse


def backends(use: AttentionUse) -> str:
    if use.tokens is None:
        return use.name
    return f"{use.name} for prompts, {use.tokens.name} for single tokens"


def attention_rows(
    use: AttentionUse, block_size: int, layers: str, origin: str
) -> Iterable[tuple[str, str, str]]:
    """Return what some layers, named `layers`, compute and keep. `origin` is the backend's
    distribution."""
    yield "attention", f"{backends(use)}: {_heads(use.need)}, {layers}", origin
    if not use.cache:
        return
    tensors = "; ".join(
        f"{name} {tensor.dtype} {list(tensor.shape)}" for name, tensor in use.cache.items()
    )
    if (keys := use.cache.get("index_k")) is not None:
        from inferno.plan.cache_groups import nbytes_of

        index = nbytes_of({"index_k": keys})
        other, extra = (format_bytes(n / block_size) for n in (nbytes_of(use.cache) - index, index))
        tensors += f": {other} per token, and {extra} of the index"
    yield "KV layout", f"per layer and {block_size} tokens: {tensors}", ""


def _heads(need: AttentionNeed) -> str:
    features = "".join(
        f", {name}" + ("" if (value := getattr(need, name)) is True else f" {value}")
        for name in sorted(need.features - {"scale", "batch_invariant", "index"})
    )
    if (index := need.index) is not None:
        features += f", over {index.top_k} positions that "
        features += (
            "the index of an earlier layer finds"
            if index.shared
            else f"an index finds by {index.num_heads} heads of {index.head_dim}"
        )
    return f"{need.num_heads} query heads over {need.num_kv_heads} of {need.head_dim}{features}"
