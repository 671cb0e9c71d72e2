"""The tensors of a model's files, under the files' own names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
from attrs import define

from inferno.contracts import TensorInfo, TextAssets
from inferno.errors import CheckpointError
from inferno_gguf import sentence
from inferno_gguf.reader import DAMAGED, GgufFile, Stored

if TYPE_CHECKING:
    from torch import Tensor

_HOST_ORDER = "<" if sys.byteorder == "little" else ">"


@define
class StoredTensors:
    """See `contracts.Checkpoint`. A matrix in blocks is a tensor of bytes, (rows, bytes per
    row)."""

    files: list[GgufFile]
    config: Mapping[str, Any]
    tensors: dict[str, TensorInfo]
    _places: dict[str, tuple[GgufFile, Stored]]

    @classmethod
    def of(cls, files: list[GgufFile], config: Mapping[str, Any]) -> StoredTensors:
        """Raises CheckpointError for a name that two files store."""
        places: dict[str, tuple[GgufFile, Stored]] = {}
        for file in files:
            for stored in file.tensors.values():
                if stored.name in places:
                    raise CheckpointError(
                        f"{file.path.name}: {stored.name} is stored twice", DAMAGED
                    )
                places[stored.name] = file, stored
        infos = {name: _info(stored) for name, (_, stored) in places.items()}
        return cls(files, config, infos, places)

    def __getitem__(self, name: str) -> Stored:
        """The header of a tensor."""
        return self._places[name][1]

    def text(self, strip_after: Mapping[str, tuple[str, ...]] | None = None) -> TextAssets:
        """Read the text files' content. `strip_after` is the dialect's."""
        from inferno_gguf.text import read_text

        assets = read_text(self.files[0], strip_after)
        layers = {name: self[name].shape for name in sentence.DENSE if name in self._places}
        if not layers:
            return assets
        modules = sentence.with_dense(assets.modules, layers, self.dense)
        return attrs.evolve(assets, modules=modules)

    def dense(self, name: str) -> Tensor:
        """Read a matrix, dequantized."""
        import torch

        from inferno_gguf.unpacked import dequantize

        values = self.in_host_order(name, self.read(name))
        kind = self[name].type
        return values if kind.dtype else dequantize(kind.name, values, torch.float32)

    def read(self, name: str) -> Tensor:
        """Read a view of the mapped file, in its byte order. Each tensor has its own map, so
        freeing it frees its pages."""
        import torch

        file, stored = self._places[name]
        info = self.tensors[name]
        pages, begin = file.pages_of(stored)
        raw = torch.frombuffer(pages, dtype=torch.uint8, count=stored.nbytes, offset=begin)
        return raw.view(getattr(torch, info.dtype)).view(info.shape)

    def in_host_order(self, name: str, rows: Tensor) -> Tensor:
        """Convert rows of that tensor to this machine's byte order, copying if the file's
        differs."""
        file, stored = self._places[name]
        return rows if file.order == _HOST_ORDER else _swapped(rows, file, stored)

    def close(self) -> None:
        """Close the files. Tensors already read stay valid."""
        self.files, self.tensors, self._places = [], {}, {}


def _info(stored: Stored) -> TensorInfo:
    kind = stored.type
    if kind.dtype is not None:
        return TensorInfo(kind.dtype, stored.shape, stored.nbytes)
    row = stored.shape[-1] // kind.values * kind.nbytes
    return TensorInfo("uint8", (*stored.shape[:-1], row), stored.nbytes)


def _swapped(rows: Tensor, file: GgufFile, stored: Stored) -> Tensor:
    import torch

    kind = stored.type
    raw = rows.contiguous().view(-1).view(torch.uint8).view(-1, kind.nbytes)
    if kind.dtype is not None:
        return raw.flip(1).view(-1).view(rows.dtype).view(rows.shape)
    if kind.swapped is None:
        raise CheckpointError(
            f"{file.path.name}: {stored.name} is {kind.name} in the other byte order",
            "Quantize the model again on a machine of this byte order.",
        )
    blocks = raw.clone()
    for offset in kind.swapped:
        blocks[:, [offset, offset + 1]] = blocks[:, [offset + 1, offset]]
    return blocks.view(rows.shape)
