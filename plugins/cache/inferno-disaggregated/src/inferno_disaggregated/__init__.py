"""Prefill and decode apart: one instance computes prompts, another pulls the blocks."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import BlockStore
from inferno_disaggregated.address import refuses


@hookimpl
def inferno_block_stores() -> list[BlockStore]:
    return [
        BlockStore(
            name="disaggregated",
            build="inferno_disaggregated.store:build",
            refuses=refuses,
            links=True,
        )
    ]
