"""How a plan's model makes embeddings, for `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferno.contracts import TextAssets
    from inferno.plan import Plan


def embedding_rows(plan: Plan, assets: TextAssets) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of models that were trained for embeddings, and of other encoders."""
    if not (assets.modules or plan.whole_prompts):
        return
    from inferno.llm.pooling import PoolingConfig, pooling_name
    from inferno.text import ChatTemplate

    made = PoolingConfig.of(
        assets,
        plan.config,
        None,
        ChatTemplate.from_assets(assets),
        generates=not plan.whole_prompts,
    )
    if made.classifier is not None or not (made.is_embedder or plan.whole_prompts):
        return
    if made.unsupported:
        yield "embeddings", f"off: {made.unsupported}", ""
        return
    size = "" if made.size is None else f", {made.size} numbers"
    layers = f" through {len(made.layers)} Dense" if made.layers else ""
    yield "embeddings", pooling_name(made.pooling) + layers + size, ""
    yield "", "normalized" if made.normalize else "not normalized", ""
    if made.dimensions is not None:
        sizes = ", ".join(map(str, made.dimensions)) or f"any size up to {made.size}"
        yield "", f"may be cut to {sizes}", ""
