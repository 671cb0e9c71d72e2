"""A GGUF model, seen as the Hugging Face checkpoint it was made from.

Which architecture that is, and what its modules are called, an installed architecture plugin says
(`contracts.GgufNames`); nothing here knows a model. A matrix that is stored in blocks is one tensor
of bytes, and its *part* names the layout: `blk.0.ffn_down.weight` of type Q4_K is
`model.layers.0.mlp.down_proj.q4_k`, uint8, (rows, bytes per row).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from inferno.contracts import Architecture, GgufNames, TensorInfo, TextAssets
from inferno.errors import CheckpointError
from inferno_gguf.config import ROPE_TENSORS, make_config
from inferno_gguf.files import open_files
from inferno_gguf.reader import DAMAGED, GgufFile, Stored

if TYPE_CHECKING:
    from torch import Tensor

_MEMBER = "{e}"
_MOST_MEMBERS = 4096
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_HOST_ORDER = "<" if sys.byteorder == "little" else ">"


@frozen
class _Tensor:
    file: GgufFile
    stored: Stored
    info: TensorInfo
    heads: int
    """Rotary pairs lie side by side in the rows of that many heads; 0: they do not."""
    added: float
    """What was added to every value before it was stored."""
    member: int | None
    """Which matrix of a stored stack; None: it is no stack."""


@define
class GgufCheckpoint:
    """See `contracts.Checkpoint`."""

    files: list[GgufFile]
    config: Mapping[str, Any]
    _tensors: dict[str, _Tensor]

    @classmethod
    def open(cls, path: Path, architectures: Sequence[Architecture] = ()) -> GgufCheckpoint:
        files = open_files(path)
        architecture, names = _architecture(files[0], architectures)
        tensors: dict[str, _Tensor] = {}
        for file in files:
            for stored in file.tensors.values():
                if stored.name in ROPE_TENSORS:
                    continue
                heads = _rotary_heads(files[0], names, stored)
                added = names.added.get(_pattern(stored.name.rpartition(".")[0]), 0.0)
                translated = _translate(names, stored)
                if _MEMBER not in translated:
                    _put(
                        tensors,
                        translated,
                        _Tensor(file, stored, _single(names, stored), heads, added, None),
                    )
                    continue
                if len(stored.shape) < 2 or stored.shape[0] > _MOST_MEMBERS:
                    raise CheckpointError(
                        f"{file.path.name}: {stored.name} of shape {stored.shape} is no stack",
                        DAMAGED,
                    )
                info = _member(_info(stored))
                for member in range(stored.shape[0]):
                    tensor = _Tensor(file, stored, info, heads, added, member)
                    _put(tensors, translated.replace(_MEMBER, str(member)), tensor)
        return cls(files, make_config(architecture, names, files), tensors)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: t.info for name, t in self._tensors.items()}

    def text(self) -> TextAssets:
        from inferno_gguf.text import read_text

        return read_text(self.files[0])

    def read(self, name: str) -> Tensor:
        """A view of the mapped file, where neither byte order nor row order must change. Each
        tensor has a map of its own: when it goes, its pages do."""
        import torch

        tensor = self._tensors[name]
        stored, info = tensor.stored, tensor.info
        pages, begin = tensor.file.pages_of(stored)
        raw = torch.frombuffer(
            pages,
            dtype=torch.uint8,
            count=info.nbytes,
            offset=begin + (tensor.member or 0) * info.nbytes,
        )
        if tensor.file.order != _HOST_ORDER:
            raw = _swapped(raw, tensor.file, stored)
        found = raw.view(getattr(torch, info.dtype)).view(info.shape)
        found = found - tensor.added if tensor.added else found
        return _halves_apart(found, tensor.heads) if tensor.heads else found

    def close(self) -> None:
        """Tensors that were read stay valid."""
        self.files, self._tensors = [], {}


def _architecture(
    file: GgufFile, architectures: Sequence[Architecture]
) -> tuple[Architecture, GgufNames]:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"{file.path.name} does not name its architecture", DAMAGED)
    known = [(a, a.gguf) for a in architectures if a.gguf is not None]
    found = [(a, names) for a, names in known if names.architecture == name]
    found = [
        (a, names)
        for a, names in found
        if names.priority == max(names.priority for _, names in found)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        claims = " and ".join(a.name for a, _ in found)
        raise CheckpointError(
            f"{claims} both read GGUF files of {name!r}",
            "Disable one of their plugins: --disable NAME",
        )
    installed = (
        ", ".join(sorted(f"{names.architecture} ({a.name})" for a, names in known)) or "none"
    )
    raise CheckpointError(
        f"{file.path.name}: no installed architecture reads GGUF files of {name!r}",
        f"Install a plugin that provides it. Installed: {installed}.",
    ).for_lack_of("architecture", name)


def _translate(names: GgufNames, stored: Stored) -> str:
    """The tensor's name in the checkpoint. Names that the architecture does not know stay: the
    model refuses them."""
    whole = names.modules.get(_pattern(stored.name))
    path, _, part = stored.name.rpartition(".")
    module = names.modules.get(_pattern(path))
    if whole is not None:
        path, _, part = whole.rpartition(".")
    elif module is not None:
        path = module
    if numbers := _NUMBER.findall(stored.name):
        path = path.replace("{n}", numbers[0])
    if stored.type.dtype is None:
        part = stored.type.name if part == "weight" else f"{part}.{stored.type.name}"
    return f"{path}.{part}" if path else part


def _put(tensors: dict[str, _Tensor], name: str, tensor: _Tensor) -> None:
    if name in tensors:
        raise CheckpointError(
            f"{tensor.file.path.name}: {tensor.stored.name} is stored twice", DAMAGED
        )
    tensors[name] = tensor


def _member(stack: TensorInfo) -> TensorInfo:
    """One of the tensors that a stack holds."""
    return TensorInfo(stack.dtype, stack.shape[1:], stack.nbytes // max(1, stack.shape[0]))


def _pattern(path: str) -> str:
    """`blk.3.attn_q` as the maps have it: `blk.{n}.attn_q`. Only a layer's number is a variable."""
    return _NUMBER.sub("{n}", path, count=1)


def _rotary_heads(file: GgufFile, names: GgufNames, stored: Stored) -> int:
    key = names.rotary_pairs.get(_pattern(stored.name.rpartition(".")[0]))
    if key is None:
        return 0
    all_heads = file.metadata.get(f"{names.architecture}.attention.head_count")
    heads = file.metadata.get(
        f"{names.architecture}.{key}", all_heads
    )  # files without grouped heads leave theirs out
    numbers = _NUMBER.findall(stored.name)
    if isinstance(heads, list):  # one for each layer
        heads = heads[int(numbers[0])] if numbers and int(numbers[0]) < len(heads) else None
    rows = stored.shape[0] if stored.shape else 0
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise CheckpointError(
            f"{file.path.name}: {stored.name} has {rows} rows for {heads} heads", DAMAGED
        )
    return heads


def _info(stored: Stored) -> TensorInfo:
    kind = stored.type
    if kind.dtype is not None:
        return TensorInfo(kind.dtype, stored.shape, stored.nbytes)
    return TensorInfo(
        "uint8", (*stored.shape[:-1], stored.shape[-1] // kind.values * kind.nbytes), stored.nbytes
    )


def _single(names: GgufNames, stored: Stored) -> TensorInfo:
    """What is stored; a matrix of one row has two dimensions again."""
    info = _info(stored)
    if len(info.shape) == 1 and _pattern(stored.name.rpartition(".")[0]) in names.single_rows:
        return TensorInfo(info.dtype, (1, *info.shape), info.nbytes)
    return info


def _halves_apart(rows: Tensor, heads: int) -> Tensor:
    """Rows (head, pair, side) to (head, side, pair): what a rotation of halves takes. Packed rows
    move whole."""
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _swapped(raw: Tensor, file: GgufFile, stored: Stored) -> Tensor:
    """A copy in this machine's byte order."""
    kind = stored.type
    if kind.dtype is not None:
        return raw.view(-1, kind.nbytes).flip(1).view(-1)
    if kind.swapped is None:
        raise CheckpointError(
            f"{file.path.name}: {stored.name} is {kind.name} in the other byte order",
            "Quantize the model anew on a machine of this one's.",
        )
    blocks = raw.view(-1, kind.nbytes).clone()
    for offset in kind.swapped:
        blocks[:, [offset, offset + 1]] = blocks[:, [offset + 1, offset]]
    return blocks.view(-1)
