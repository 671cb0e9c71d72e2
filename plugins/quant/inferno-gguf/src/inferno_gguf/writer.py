"""Writes a model as GGUF: the inverse of `checkpoint`.

Names come from the architecture's dialect, inverted. Before a tensor is written, the header is read
back as any other file's: the model that it describes must be the same, field by field and tensor by
tensor, or the conversion is refused.

Suffixes: O rows, I columns, B bytes of a packed row.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from inferno.contracts import (
    DenseCheckpoint,
    Dialect,
    Output,
    Piece,
    WriteOptions,
    WrittenFile,
    in_pairs,
    module_pattern,
    place_of,
    rotary_heads,
    tensor_pattern,
)
from inferno.errors import CheckpointError, UnsupportedError
from inferno_gguf.agreement import OTHERWISE, check
from inferno_gguf.checkpoint import GgufCheckpoint
from inferno_gguf.defaults import DEFAULTS
from inferno_gguf.fields import encoder_metadata, fields_of, model_metadata, rope_tensors
from inferno_gguf.ggml import BY_NAME
from inferno_gguf.header import StoredTensor, Typed, header
from inferno_gguf.kinds import FILE_TYPES, kinds_of
from inferno_gguf.recast import originals, recast
from inferno_gguf.sentence import pooling_metadata
from inferno_gguf.vocabulary import template_metadata, vocabulary_metadata

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 1 << 22
"""Values that are quantized at once."""


@frozen
class Stacked:
    """A stored tensor, and the model's that it holds: for each member of a stack, the tensors whose
    rows follow each other."""

    target: StoredTensor
    members: Sequence[Sequence[str]]


def write(main: str, source: DenseCheckpoint, options: WriteOptions, name: str) -> Output:
    """Return the files of the model, with matrices of the type or mix `main`. Raises
    UnsupportedError, CheckpointError."""
    dialect = _dialect(source)
    source = recast(source, dialect)
    names = _names(source, dialect)
    dropped = len(names) < len(source.tensors)
    fields = fields_of(source, dialect, mtp=bool(source.mtp) and not dropped)
    metadata = _metadata(source, dialect, fields, main, name)
    tables = rope_tensors(source, fields)
    stacks = _stacks(source, dialect, main, names, fields)
    targets = [StoredTensor(n, BY_NAME["f32"], tuple(t.shape)) for n, t in tables.items()]
    targets += [stack.target for stack in stacks]
    original = _original(source)
    check(source, names, metadata, targets, tables, is_gguf=original is not None)
    pieces = [Piece(tensors=(n,), make=partial(_table, n, tensor)) for n, tensor in tables.items()]
    make = _Make(source, dialect, fields)
    pieces += [Piece(tensors=(s.target.name,), make=partial(make, s)) for s in stacks]
    notes = (*_notes(stacks, main), *_unweighted(source, stacks))
    if dropped:
        notes += (f"files of {dialect.architecture} have no multi-token-prediction layers",)
    layouts = {
        each: stack.target.type.name
        for stack in stacks
        if stack.target.type.dtype is None
        for names_of in stack.members
        for each in names_of
    }
    files = _files(metadata, targets, options, name)
    layouts = originals(source, layouts)
    return Output(files=files, pieces=pieces, notes=notes, layouts=layouts)


def _dialect(source: DenseCheckpoint) -> Dialect:
    dialect = source.architecture.dialects.get("gguf")
    if dialect is None and source.architecture.has_encoder:
        raise UnsupportedError(
            "GGUF files keep encoders in a second file, which is not written",
            "Convert to safetensors or to a scheme of it, which keep the encoder as it is; or "
            "convert llama.cpp's GGUF file of the text model, beside which its encoder still fits.",
        )
    if dialect is None:
        raise UnsupportedError(
            f"the plugin of {source.architecture.name} does not say how GGUF files name it",
            OTHERWISE,
        )
    return dialect.of(source.config).over(DEFAULTS)


def _metadata(
    source: DenseCheckpoint, dialect: Dialect, fields: Mapping[str, Any], main: str, name: str
) -> dict[str, Any]:
    pairs: dict[str, Any] = {
        "general.architecture": dialect.architecture,
        "general.type": "model",
        "general.name": re.sub(r"\.gguf$", "", name),
        "general.file_type": FILE_TYPES[main],
        "general.quantization_version": 2,
    }
    pairs |= model_metadata(source, dialect, fields)
    pairs |= encoder_metadata(source, dialect)
    if (original := _original(source)) is not None:
        metadata = original.metadata
        vocabulary = {key: metadata[key] for key in metadata if key.startswith("tokenizer.")}
        return pairs | {key: _retyped(key, value) for key, value in vocabulary.items()}
    assets = source.text()
    prefix = dialect.architecture
    pairs |= {f"{prefix}.{key}": value for key, value in pooling_metadata(assets).items()}
    return pairs | vocabulary_metadata(assets, source.model.vocab_size) | template_metadata(assets)


def _original(source: DenseCheckpoint) -> Any:
    """Return the GGUF file that the model is stored in, if it is."""
    checkpoint: Any = source
    while checkpoint is not None and not isinstance(checkpoint, GgufCheckpoint):
        checkpoint = getattr(checkpoint, "checkpoint", None)
    return None if checkpoint is None else checkpoint.first_file


def _retyped(key: str, value: Any) -> Any:
    return Typed("i32", value) if key.endswith(".token_type") else value


def _names(source: DenseCheckpoint, dialect: Dialect) -> list[str]:
    """Return the names of the model's tensors that are written: with those of
    multi-token-prediction layers, if the dialect names them."""
    named = all(place_of(dialect, name) is not None for name in source.mtp)
    return [name for name in source.tensors if named or name not in source.mtp]


def _stacks(
    source: DenseCheckpoint,
    dialect: Dialect,
    main: str,
    names: Sequence[str],
    fields: Mapping[str, Any],
) -> list[Stacked]:
    """Return the stored tensors that hold these of the model, in their order."""
    places: defaultdict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    stacked: set[str] = set()
    unnamed: list[str] = []
    for name in names:
        place = place_of(dialect, name)
        if place is None:
            unnamed.append(name)
            continue
        places[place.stored][place.member or 0, place.part] = name
        if place.member is not None:
            stacked.add(place.stored)
    if unnamed:
        raise UnsupportedError(
            f"GGUF files of {dialect.architecture} have no name for {', '.join(unnamed[:3])}",
            OTHERWISE,
        )
    shapes: dict[str, tuple[int, ...]] = {}
    members: dict[str, list[list[str]]] = {}
    for stored, slots in places.items():
        numbers = sorted({member for member, _ in slots})
        members[stored] = [[slots[k] for k in sorted(slots) if k[0] == m] for m in numbers]
        first = [source.tensors[name].shape for name in members[stored][0]]
        shape: tuple[int, ...] = (sum(s[0] for s in first), *first[0][1:])
        if stored in stacked:
            shape = (len(numbers), *shape)
        elif stored.endswith(".weight") and module_pattern(stored) in dialect.squeezed:
            axis = dialect.squeezed[module_pattern(stored)]
            shape = (*shape[:axis], *shape[axis + 1 :])
        elif (field := dialect.matrices.get(tensor_pattern(stored))) is not None:
            rows = int(fields[field])
            shape = (rows, math.prod(shape) // rows)
        shapes[stored] = shape
    first_of = {stored: (members[stored][0][0], shape) for stored, shape in shapes.items()}
    written = {name.removesuffix(".weight") for name in names}
    shapes_of = {path: s for path, s in source.matrices.shapes.items() if path in written}
    matrices = attrs.evolve(source.matrices, shapes=shapes_of)
    types = kinds_of(main, first_of, matrices, weighted=source.importance is not None)
    return [
        Stacked(StoredTensor(stored, BY_NAME[types[stored]], shapes[stored]), members[stored])
        for stored in places
    ]


def _table(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield name, tensor


@frozen(eq=False)
class _Make:
    """Makes the bytes of stored tensors."""

    source: DenseCheckpoint
    dialect: Dialect
    fields: Mapping[str, Any]

    def __call__(self, stack: Stacked) -> Iterator[tuple[str, Tensor]]:
        target = stack.target
        for names in stack.members:
            for name in names:
                for data in self._rows(name, target):
                    yield target.name, data

    def _rows(self, name: str, target: StoredTensor) -> Iterator[Tensor]:
        """Yield a tensor of the model as it is stored, a few rows at a time."""
        import torch

        heads = rotary_heads(self.dialect, self.fields, name)
        added = self.dialect.added.get(module_pattern(target.name), 0.0)
        decay = tensor_pattern(target.name) in self.dialect.decays
        kind = target.type.name
        matrix = self.source.weight(name)
        if matrix is not None and matrix.layout == kind:  # as it was: not rounded again
            assert isinstance(matrix.data, torch.Tensor), "packed in blocks"
            yield in_pairs(matrix.data, heads) if heads else matrix.data
            return
        shape = self.source.tensors[name].shape
        step = shape[0] if heads or not shape else max(1, ROWS // max(1, shape[-1]))
        for start in range(0, shape[0] if shape else 1, max(1, step)):
            values = self.source.read(name, start, start + step)
            values = in_pairs(values, heads) if heads else values
            values = values.float() + added if added else values
            values = -values.float().exp() if decay else values
            yield _encoded(self.source, kind, values, name)


def _encoded(source: DenseCheckpoint, kind: str, values: Tensor, name: str) -> Tensor:
    """Return rows of the model's tensor `name` as a type stores them."""
    import torch

    dtype = BY_NAME[kind].dtype
    if dtype is None:
        from inferno_gguf.quantize import pack

        column_I = (source.importance or {}).get(name.removesuffix(".weight"))
        importance = None if column_I is None else torch.from_numpy(column_I)
        return pack(kind, values, importance=importance, quantize=source.quantizer(kind)).data
    stored = values.to(getattr(torch, dtype))
    if kind == "f16" and not torch.equal(stored.isfinite(), values.isfinite()):
        raise CheckpointError(
            f"{name} has values that are too large for float16", "Convert to bf16 or q8_0 instead."
        )
    return stored


def _files(
    metadata: Mapping[str, Any], targets: Sequence[StoredTensor], options: WriteOptions, name: str
) -> list[WrittenFile]:
    """Return one file, or the shards of a split one; the first has the metadata."""
    shards: list[list[StoredTensor]] = [[]]
    for target in targets:
        if shards[-1] and sum(t.nbytes for t in (*shards[-1], target)) > (options.split or 1 << 62):
            shards.append([])
        shards[-1].append(target)
    if len(shards) == 1:
        return [_file(name, metadata, targets)]
    stem, count = re.sub(r"\.gguf$", "", name), len(shards)
    files = []
    for number, shard in enumerate(shards):
        split = {
            "split.no": Typed("u16", number),
            "split.count": Typed("u16", count),
            "split.tensors.count": Typed("i32", len(targets)),
        }
        entries = {**metadata, **split} if number == 0 else split
        files.append(_file(f"{stem}-{number + 1:05}-of-{count:05}.gguf", entries, shard))
    return files


def _file(name: str, metadata: Mapping[str, Any], targets: Sequence[StoredTensor]) -> WrittenFile:
    start, places, nbytes = header(metadata, targets)
    return WrittenFile(name=name, start=start, places=places, nbytes=nbytes)


def _notes(stacks: Sequence[Stacked], main: str) -> tuple[str, ...]:
    """Say which types the matrices have, if not all one."""
    counts: defaultdict[str, int] = defaultdict(int)
    for stack in stacks:
        if len(stack.target.shape) > 1:
            counts[stack.target.type.name] += 1
    if set(counts) == {main}:
        return ()
    phrases = (
        f"{count} {'matrix' if count == 1 else 'matrices'} of {kind}"
        for kind, count in counts.items()
    )
    return (", ".join(phrases),)


def _unweighted(source: DenseCheckpoint, stacks: Sequence[Stacked]) -> Iterator[str]:
    """Say how many matrices the importance matrix does not cover, if there is one."""
    if source.importance is None:
        return
    missing = sum(
        name.removesuffix(".weight") not in source.importance
        for stack in stacks
        if stack.target.type.dtype is None
        for names in stack.members
        for name in names
    )
    if missing:
        yield f"{missing} matrices were quantized without importance: the matrix has none for them"
