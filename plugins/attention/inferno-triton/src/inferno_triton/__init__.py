"""Attention over the paged cache, in Triton. Imports neither torch nor triton until a model is
loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import AttentionBackend
from inferno_triton import attention


@hookimpl
def inferno_attention_backends() -> list[AttentionBackend]:
    return [
        AttentionBackend(
            name="triton",
            refuses=attention.refuses,
            build="inferno_triton.attend:build",
            cache=attention.cache,
            features=frozenset(
                {"sliding_window", "soft_cap", "value_dim", "latent_dim", "sinks", "cache_dtype"}
            ),
            block_size=64,
            layout=attention.LAYOUT,
            priority=20,
        )
    ]
