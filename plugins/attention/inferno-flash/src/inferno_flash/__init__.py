"""FlashAttention over the paged cache: the packages flash-attn (2 and 3) and torch's own. Imports
neither torch nor the packages until a model is loaded."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import AttentionBackend
from inferno_flash import variants


@hookimpl
def inferno_attention_backends() -> list[AttentionBackend]:
    return [
        AttentionBackend(
            name=variant.name,
            refuses=variant.refuses,
            build=f"inferno_flash.attend:{variant.name.replace('-', '_')}",
            cache=variants.cache,
            features=variant.features,
            block_size=variant.block_size,
            block_multiple=variant.block_multiple,
            layout="head-major",
            priority=variant.priority,
        )
        for variant in variants.VARIANTS
    ]
