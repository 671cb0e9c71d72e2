"""The tensors of an encoder's file under the names of the original checkpoint, all of them dense.

An encoder has a hundredth of a model's weights: packed, it would save little, and a product of
thousands of patches is faster by dense ones.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from inferno.contracts import DTYPE_BYTES, EncoderDialect, EncoderJoin, TensorInfo
from inferno.contracts import tensor_pattern as pattern
from inferno.errors import CheckpointError
from inferno_gguf.checkpoint import halves_apart
from inferno_gguf.reader import DAMAGED, GgufFile, Stored
from inferno_gguf.stored import StoredTensors

if TYPE_CHECKING:
    from torch import Tensor

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@frozen
class _Read:
    """How a tensor is read."""

    stored: tuple[str, ...]
    axis: int | None = None
    """The new axis that several are stacked along; None: their rows follow each other."""
    heads: int = 0
    """Number of heads whose rows have rotary pairs interleaved; 0: not interleaved."""
    added: float = 0.0
    is_scalar: bool = False
    colours_last: bool = False


@frozen(eq=False)
class EncoderTensors:
    tensors: Mapping[str, TensorInfo]
    file: GgufFile
    _stored: StoredTensors
    _reads: Mapping[str, _Read]

    @classmethod
    def of(cls, file: GgufFile, dialect: EncoderDialect) -> EncoderTensors:
        """Raises CheckpointError for a tensor that the dialect does not know, or that contradicts
        it."""
        reads = _reads(file, dialect)
        infos = {name: _info(file, read) for name, read in reads.items()}
        return cls(infos, file, StoredTensors.of([file], {}), reads)

    def read(self, name: str) -> Tensor:
        import torch

        how, info = self._reads[name], self.tensors[name]
        dtype = getattr(torch, info.dtype)
        parts = [self._dense(stored).to(dtype) for stored in how.stored]
        whole = parts[0] if len(parts) == 1 and how.axis is None else None
        if whole is None:
            whole = torch.cat(parts) if how.axis is None else torch.stack(parts, how.axis)
        whole = halves_apart(whole, how.heads) if how.heads else whole
        whole = whole - how.added if how.added else whole
        whole = whole.permute(0, 2, 3, 1) if how.colours_last else whole
        return whole.reshape(info.shape)

    def _dense(self, name: str) -> Tensor:
        import torch

        from inferno_gguf.unpacked import dequantize

        stored = self._stored[name]
        values = self._stored.in_host_order(name, self._stored.read(name))
        if stored.type.dtype is not None:
            return values
        rows = values.view(-1, values.shape[-1])
        return dequantize(stored.type.name, rows, torch.float32).view(stored.shape)

    def close(self) -> None:
        """Close the file. Tensors already read stay valid."""
        self._stored.close()


def _reads(file: GgufFile, dialect: EncoderDialect) -> dict[str, _Read]:
    reads = dict[str, _Read]()
    left = {name for name in file.tensors if not name.startswith(dialect.skipped)}
    for ours, join in dialect.joins.items():
        for name in sorted(file.tensors):
            if _matches(join.parts[0], name):
                parts = _parts(file, name, join)
                reads[_numbered(ours, name)] = _Read(parts, join.axis)
                left -= {*parts}
    places = _places(file)
    for name in sorted(left):
        module, _, part = name.rpartition(".")
        keys = (name, ""), (pattern(name), ""), (module, f".{part}"), (pattern(module), f".{part}")
        entry = next(((key, end) for key, end in keys if key in dialect.modules), None)
        if entry is None:
            raise CheckpointError(
                f"{file.path.name}: {name} is not a tensor of a {dialect.kind!r} encoder",
                "Get the encoder made for this version of the model, or run it without images: "
                "--no-mmproj.",
            )
        key, end = entry
        if (path := dialect.modules[key]) is not None:
            ours = _numbered(path + end, name).replace("{k}", str(places.get(name)))
            if ours in reads:
                raise CheckpointError(f"{file.path.name}: {ours} is stored twice", DAMAGED)
            heads = _heads(file, dialect, name) if key in dialect.rotary_pairs else 0
            reads[ours] = _Read(
                (name,),
                heads=heads,
                added=dialect.added.get(key, 0.0),
                is_scalar=part in dialect.scalars,
                colours_last=part == "weight" and key in dialect.colours_last,
            )
    return reads


def _matches(part: str, name: str) -> bool:
    return name == part if "{n}" not in part else pattern(name) == part


def _numbered(path: str, name: str) -> str:
    numbers = _NUMBER.findall(name)
    return path.replace("{n}", numbers[0]) if numbers else path


def _places(file: GgufFile) -> dict[str, int]:
    """Return the place of each tensor among the layers that have one of its name."""
    layers = defaultdict[str, list[tuple[int, str]]](list)
    for name in file.tensors:
        if numbers := _NUMBER.findall(name):
            layers[pattern(name)].append((int(numbers[0]), name))
    return {
        name: place for group in layers.values() for place, (_, name) in enumerate(sorted(group))
    }


def _parts(file: GgufFile, first: str, join: EncoderJoin) -> tuple[str, ...]:
    parts = tuple(_numbered(part, first) for part in join.parts)
    shapes = {file.tensors[part].shape for part in parts if part in file.tensors}
    missing = [part for part in parts if part not in file.tensors]
    if missing or len(shapes) > 1:
        what = f"{missing[0]} is missing" if missing else f"of shapes {sorted(shapes)}"
        raise CheckpointError(
            f"{file.path.name}: {' and '.join(parts)} are not one tensor: {what}", DAMAGED
        )
    return parts


def _heads(file: GgufFile, dialect: EncoderDialect, name: str) -> int:
    heads, shape = file.metadata.get(dialect.heads), file.tensors[name].shape
    rows = shape[0] if shape else 0
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise CheckpointError(
            f"{file.path.name}: {name} has {rows} rows for {str(heads)[:40]} heads", DAMAGED
        )
    return heads


def _info(file: GgufFile, read: _Read) -> TensorInfo:
    parts: list[Stored] = [file.tensors[name] for name in read.stored]
    dtypes = {part.type.dtype or "float32" for part in parts}
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
    if dtype not in DTYPE_BYTES:
        raise CheckpointError(f"{file.path.name}: {parts[0].name} is of integers", DAMAGED)
    shape = parts[0].shape
    if (read.is_scalar and math.prod(shape) != 1) or (read.colours_last and len(shape) != 4):
        raise CheckpointError(f"{file.path.name}: {parts[0].name} has the shape {shape}", DAMAGED)
    if read.is_scalar:
        shape = ()
    elif read.colours_last:
        shape = shape[0], math.prod(shape[1:])
    elif read.axis is not None:
        if read.axis > len(shape):
            raise CheckpointError(
                f"{file.path.name}: {parts[0].name} has {len(shape)} dimensions", DAMAGED
            )
        shape = (*shape[: read.axis], len(parts), *shape[read.axis :])
    elif len(parts) > 1:
        shape = (shape[0] * len(parts), *shape[1:]) if shape else (len(parts),)
    return TensorInfo(dtype, shape, math.prod(shape) * DTYPE_BYTES[dtype])
