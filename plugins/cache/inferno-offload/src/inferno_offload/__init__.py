"""Blocks of the cache in host memory and on disk."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import BlockStore


@hookimpl
def inferno_block_stores() -> list[BlockStore]:
    return [
        BlockStore(
            name="offload",
            build="inferno_offload.store:build",
            survey="inferno_offload.folder:survey",
        )
    ]
