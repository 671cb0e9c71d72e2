"""A GGUF model, seen as the Hugging Face checkpoint it was made from.

The dialects of installed architecture plugins (`contracts.Dialect`) identify the architecture and
its naming; nothing here knows a model. A matrix stored in blocks is one tensor of bytes, and its
*part* names the layout: `blk.0.ffn_down.weight` of type Q4_K is
`model.layers.0.mlp.down_proj.q4_k`, uint8, (rows, bytes per row).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define

from inferno.contracts import Architecture, Dialect, RowJoin, RowsView, TensorInfo, TextAssets
from inferno.errors import CheckpointError
from inferno_gguf.config import make_config
from inferno_gguf.defaults import DEFAULTS
from inferno_gguf.files import open_files
from inferno_gguf.reader import DAMAGED, GgufFile
from inferno_gguf.stored import StoredTensors
from inferno_gguf.translate import Change, translate

if TYPE_CHECKING:
    from torch import Tensor

_UNCHANGED = Change()


@define
class GgufCheckpoint:
    """See `contracts.Checkpoint`."""

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    files: tuple[Path, ...]
    _stored: StoredTensors
    _rows: RowsView
    _changes: Mapping[str, Change]
    _joins: Mapping[str, RowJoin]
    _dialect: Dialect

    @classmethod
    def open(cls, path: Path, architectures: Sequence[Architecture] = ()) -> GgufCheckpoint:
        files = open_files(path)
        architecture, dialect = _architecture(files, architectures)
        config = make_config(architecture, dialect, files)
        stored = StoredTensors.of(files, config)
        translation = translate(stored, dialect, config)
        rows = RowsView(stored, translation.ranges)
        tensors = {**rows.tensors, **translation.infos}
        changes, joins = translation.changes, translation.joins
        paths = tuple(file.path for file in files)
        return cls(config, tensors, paths, stored, rows, changes, joins, dialect)

    @property
    def first_file(self) -> GgufFile:
        """The file with the metadata."""
        return self._stored.files[0]

    @property
    def license(self) -> str:
        """The model's licence as the file names it; empty if it does not."""
        return str(self.first_file.metadata.get("general.license") or "")

    def text(self) -> TextAssets:
        return self._stored.text(self._dialect.strip_after)

    def read(self, name: str) -> Tensor:
        """Read a tensor: a view of the mapped file unless byte order or row order must change."""
        if (join := self._joins.get(name)) is not None:
            return self._joined(join, self.tensors[name])
        rows = self._stored.in_host_order(self._rows.ranges[name].stored, self._rows.read(name))
        change = self._changes.get(name, _UNCHANGED)
        rows = rows - change.added if change.added else rows
        rows = (-rows).log() if change.decay else rows
        rows = halves_apart(rows, change.heads) if change.heads else rows
        return rows.view(self.tensors[name].shape)

    def _joined(self, join: RowJoin, info: TensorInfo) -> Tensor:
        """Interleave the stacks' rows, head by head."""
        import torch

        stacks = [(self._dense(name), name in join.transposed) for name in join.stacks]
        heads = [stack.transpose(1, 2) if transposed else stack for stack, transposed in stacks]
        return torch.cat(heads, 1).flatten(0, 1).to(getattr(torch, info.dtype))

    def _dense(self, name: str) -> Tensor:
        """A stored stack of matrices, dequantized."""
        import torch

        from inferno_gguf.unpacked import dequantize

        stack = self._stored.in_host_order(name, self._stored.read(name))
        if self._stored[name].type.dtype is not None:
            return stack
        values = dequantize(self._stored[name].type.name, stack.flatten(0, 1), torch.float32)
        return values.view(*stack.shape[:2], -1)

    def close(self) -> None:
        """Close the files. Tensors already read stay valid."""
        self._stored.close()
        self.tensors, self._joins = {}, {}


def _architecture(
    files: Sequence[GgufFile], architectures: Sequence[Architecture]
) -> tuple[Architecture, Dialect]:
    """Find the architecture of the file and its dialect; of several, the one whose `mark` is
    stored, else that of highest priority."""
    file = files[0]
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"{file.path.name} does not name its architecture", DAMAGED)
    known = [(a, a.dialects["gguf"]) for a in architectures if "gguf" in a.dialects]
    matches = [(a, named) for a, dialect in known if (named := dialect.named(name)) is not None]
    marked = [each for each in matches if any(each[1].mark in f.tensors for f in files)]
    matches = marked or [each for each in matches if not each[1].mark]
    first = max((dialect.priority for _, dialect in matches), default=0)
    matches = [(a, dialect) for a, dialect in matches if dialect.priority == first]
    if len(matches) == 1:
        [(architecture, dialect)] = matches
        return architecture, dialect.over(DEFAULTS)
    if matches:
        claims = " and ".join(a.name for a, _ in matches)
        raise CheckpointError(
            f"{claims} both read GGUF files of {name!r}",
            "Disable one of their plugins: --disable NAME",
        )
    if name == "clip":
        raise CheckpointError(
            f"{file.path.name} is an encoder of images, not a model",
            "Name the model's file, and the encoder by --mmproj if it is not beside it.",
        )
    names = {f"{d.architecture} ({a.name})" for a, base in known for d in (base, *base.variants)}
    installed = ", ".join(sorted(names)) or "none"
    raise CheckpointError(
        f"{file.path.name}: no installed architecture reads GGUF files of {name!r}",
        f"Install a plugin that provides it. Installed: {installed}.",
    ).for_lack_of("architecture", name)


def halves_apart(rows: Tensor, heads: int) -> Tensor:
    """Reorder rows (head, pair, side) to (head, side, pair), as rotating by halves needs. Packed
    rows move whole."""
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
