"""What plugins declare for this report alone, by entry points: the kernel reads neither.

- `inferno_gpu_report.sizes`: an architecture's name, and a mapping of sizes of published models, by
  the names that users give them ("0.6B", "8B"), to the fields of `config.json` that determine the
  tensors. The models get random weights.
- `inferno_gpu_report.variants`: an attention backend's name, and variants(need, block_size) ->
  other ways to build the attention of single tokens, by a short description ("64 keys, 3 stages").
  It is called only for needs that the backend does not refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from inferno.catalog import Offer
from inferno.contracts import Architecture, Attend, AttentionNeed

SIZES, VARIANTS = "inferno_gpu_report.sizes", "inferno_gpu_report.variants"
Variants = Callable[[AttentionNeed, int], Mapping[str, Callable[[], Attend]]]


def sizes_of(offer: Offer[Architecture]) -> Mapping[str, Mapping[str, Any]]:
    """Return the sizes of an installed architecture."""
    by_name: Mapping[str, Mapping[str, Any]] = _declared(SIZES, offer.item.name) or {}
    return by_name


def variants_of(backend: str) -> Variants | None:
    """Return what makes variants of an attention backend; None if its plugin declares none."""
    maker: Variants | None = _declared(VARIANTS, backend)
    return maker


def _declared(group: str, name: str) -> Any:
    entries = sorted(entry_points(group=group, name=name), key=lambda entry: entry.value)
    return entries[0].load() if entries else None
