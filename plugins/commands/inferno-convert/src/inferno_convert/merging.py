"""Low-rank adapters that a conversion merges into the model: W + scale · B A, in float32.

Suffixes: O rows, I columns, R rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import (
    AdapterBase,
    AdapterFormat,
    Checkpoint,
    FetchOptions,
    LowRank,
    RowRange,
    RowsView,
    TensorInfo,
)
from inferno.errors import CheckpointError
from inferno.plan import find_adapter, names_in_model
from inferno_convert.source import Change, Source

if TYPE_CHECKING:
    from torch import Tensor

_OTHER = "The adapter belongs to another model: merge it into that one."


@frozen(eq=False)
class Merged:
    """The adapters that are merged."""

    digests: tuple[str, ...]
    changes: Mapping[str, Sequence[Change]]
    """By the names of the model's modules, as adapters have them."""

    def place(
        self, seen: Checkpoint, tensors: Mapping[str, TensorInfo]
    ) -> Mapping[str, Sequence[tuple[RowRange, Change]]]:
        """Return the changes of each of `tensors`, by the rows that change. `seen` are the tensors
        as the model sees them. Raises CheckpointError."""
        ranges = seen.ranges if isinstance(seen, RowsView) else {}
        placed = defaultdict[str, list[tuple[RowRange, Change]]](list)
        for path, changes in self.changes.items():
            names = [f"{each}.weight" for each in names_in_model(path)]
            found = [RowRange(name) if name in tensors else ranges.get(name) for name in names]
            rows = next((each for each in found if each and each.stored in tensors), None)
            if rows is None:
                raise CheckpointError(
                    f"the adapter changes {path[:100]}, and the model has no such matrix", _OTHER
                )
            shape = rows.info(tensors[rows.stored]).shape
            for change in changes:
                if change.shape != shape:
                    raise CheckpointError(
                        f"the adapter has {change.shape} for {path[:100]}, the model {shape}",
                        _OTHER,
                    )
                placed[rows.stored].append((rows, change))
        return placed


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
