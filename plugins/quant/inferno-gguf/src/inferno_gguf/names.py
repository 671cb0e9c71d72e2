"""What files from llama.cpp's converter call a model's modules: dialects, read backwards.

Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import frozen

from inferno.contracts import DenseMatrices, Dialect
from inferno_gguf.defaults import DEFAULTS

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@frozen
class Name:
    """A module's name in files."""

    path: str
    """Without the tensor's part: "blk.3.ffn_down_exps"."""
    member: int | None = None
    """Its index, if files stack several modules into one tensor."""

    @property
    def kind(self) -> str:
        """The name without its layer: "ffn_down_exps"."""
        return self.path.rpartition(".")[2]

    @property
    def layer(self) -> int | None:
        match = _NUMBER.search(self.path)
        return None if match is None else int(match[0])


def names_of(matrices: DenseMatrices) -> dict[str, Name]:
    """Return the names that files use for these modules, by their paths in the model. Modules that
    no dialect mentions are left out."""
    variant = matrices.architecture.dialects.get("gguf", Dialect()).of(matrices.config)
    recast = None if variant.recast is None else variant.recast(matrices.config)
    splits = {} if recast is None else recast.splits
    return dict(_names(variant.over(DEFAULTS), matrices.shapes, splits))


def _names(
    dialect: Dialect, paths: Mapping[str, object], splits: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, Name]]:
    known: dict[str, str] = {}
    # Rows first: where a dialect stores a module alone and with others, its own name counts.
    for stored, split in dialect.rows.items():
        known.update(dict.fromkeys(split.shares, stored))
    for path, join in dialect.joins.items():
        known[path] = join.stacks[0]
    known.update({path: stored for stored, path in dialect.modules.items() if path is not None})
    # Matrices that files split have the inputs of each part, and the type of the first.
    known.update({path: known[parts[0]] for path, parts in splits.items() if parts[0] in known})
    for path in paths:
        numbers = [int(number) for number in _NUMBER.findall(path)]
        layer = numbers[0] if numbers else None
        pattern = path if layer is None else _NUMBER.sub("{n}", path, count=1)
        member = numbers[1] if len(numbers) > 1 else None
        if member is not None and pattern not in known:
            pattern = _NUMBER.sub("{e}", pattern, count=1)
        if pattern in known:
            stored = known[pattern].replace("{n}", str(layer))
            yield path, Name(stored, member if "{e}" in pattern else None)
