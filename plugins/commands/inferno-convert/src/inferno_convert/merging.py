"""Reads the adapters that a conversion merges into the model.

Suffixes: O rows, I columns, R rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferno.contracts import (
    AdapterBase,
    AdapterFormat,
    FetchOptions,
    LowRank,
)
from inferno.errors import CheckpointError
from inferno.plan import find_adapter
from inferno_convert.changes import Change, Merged
from inferno_convert.source import Source

if TYPE_CHECKING:
    from torch import Tensor


def read_adapters(refs: Iterable[str], source: Source, fetch: FetchOptions) -> Merged:
    """Fetch and read adapters. Raises an InfernoError."""
    base = AdapterBase(
        architecture=source.architecture, config=source.checkpoint.config, merging=True
    )
    digests: list[str] = []
    changes = defaultdict[str, list[Change]](list)
    for ref in refs:
        vocab_size = source.model.vocab_size
        use = find_adapter(source.catalog, ref, ref, fetch, base, vocab_size).value.adapter
        format = source.catalog.named(AdapterFormat, use.format).item
        file = format.open(Path(use.path), base)
        values = file.read()
        magnitudes: Mapping[str, Any] = getattr(file, "magnitudes", dict)()
        digests.append(file.digest)
        for path, pair in file.pairs.items():
            changes[path].append(_change(ref, path, pair, *values[path], magnitudes.get(path)))
    return Merged(tuple(digests), changes)


def _change(
    ref: str, path: str, pair: LowRank, a_RI: Tensor, b_OR: Tensor, magnitude_O: Any
) -> Change:
    parts = [a_RI.float(), b_OR.float() * pair.scale]
    if magnitude_O is not None:
        parts.append(magnitude_O.float())
    if not all(bool(each.isfinite().all()) for each in parts):
        raise CheckpointError(
            f"{ref} has numbers for {path[:100]} that are not finite",
            "It is damaged: train or save it again.",
        )
    return Change(*parts)
