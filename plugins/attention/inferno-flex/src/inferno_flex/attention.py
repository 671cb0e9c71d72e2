"""Cache layout and refusals of FlexAttention. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from inferno.contracts import AttentionNeed, CacheTensor

_KINDS = ("cpu", "cuda")
"""Devices for which torch writes FlexAttention."""

_COMPILED_CAPABILITY = (8, 0)


def refuses(need: AttentionNeed) -> str | None:
    if need.device.kind not in _KINDS:
        return f"FlexAttention runs on CPUs and CUDA devices, not on {need.device}"
    if need.num_heads % need.num_kv_heads:
        return (
            f"{need.num_heads} query heads are not divisible by {need.num_kv_heads} key/value heads"
        )
    if need.latent_dim is not None and not 0 < need.latent_dim <= need.head_dim:
        return f"latent_dim {need.latent_dim} is not between 1 and head_dim {need.head_dim}"
    if need.sliding_window is not None and need.sliding_window < 1:
        return f"a window of {need.sliding_window} tokens excludes the current token"
    return None


def refuses_compiled(need: AttentionNeed) -> str | None:
    device = need.device
    if (reason := refuses(need)) is not None:
        return reason
    if device.kind == "cuda" and (device.capability or (0, 0)) < _COMPILED_CAPABILITY:
        least = ".".join(map(str, _COMPILED_CAPABILITY))
        verb = "does not tell" if device.capability is None else "does not have"
        return f"its compiled kernels need compute capability {least}, which {device} {verb}"
    return None


def cache(need: AttentionNeed, block_size: int) -> Mapping[str, CacheTensor]:
    """Return the tensors of one block, (tokens, heads, elements): those of torch's attention, which
    may compute the other steps."""
    keys = CacheTensor((block_size, need.num_kv_heads, need.head_dim), need.dtype)
    if need.latent_dim is not None:
        return {"k": keys}
    values = CacheTensor((block_size, need.num_kv_heads, need.output_dim), need.dtype)
    return {"k": keys, "v": values}
