"""What adapters change of a model that is converted: W + scale · B A, in float32.

Suffixes: O rows, I columns, R rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from inferno.contracts import Checkpoint, RowRange, RowsView, TensorInfo
from inferno.errors import CheckpointError
from inferno.plan import names_in_model

if TYPE_CHECKING:
    from torch import Tensor

_OTHER = "The adapter belongs to another model: merge it into that one."


@frozen(eq=False)
class Change:
    """What an adapter makes of a matrix."""

    a_RI: Tensor
    b_OR: Tensor
    """With the scale in it."""
    magnitude_O: Tensor | None = None
    """The norms of the rows that result (DoRA, arXiv:2402.09353); None: as they are."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.b_OR.shape[0], self.a_RI.shape[1]

    def into(self, weight_OI: Tensor, rows: slice) -> None:
        """Change these rows of a float32 matrix in place."""
        weight_OI += self.b_OR[rows] @ self.a_RI
        if self.magnitude_O is not None:
            norms_O = weight_OI.norm(dim=1, keepdim=True)
            weight_OI *= self.magnitude_O[rows, None] / norms_O


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
            spans = [RowRange(name) if name in tensors else ranges.get(name) for name in names]
            rows = next((each for each in spans if each and each.stored in tensors), None)
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
