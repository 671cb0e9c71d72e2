"""Maps a model's tensors to rows of stored ones, by a dialect."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import define, field, frozen

from inferno.contracts import DTYPE_BYTES, Dialect, RowJoin, RowRange, TensorInfo
from inferno.contracts import tensor_pattern as pattern
from inferno.errors import CheckpointError
from inferno_gguf.config import ROPE_TENSORS
from inferno_gguf.reader import DAMAGED, GgufFile, Stored
from inferno_gguf.sentence import DENSE
from inferno_gguf.stored import StoredTensors

_MEMBER = "{e}"
_MOST_MEMBERS = 4096
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@frozen
class Change:
    """Changes to a tensor's rows once they are read."""

    heads: int = 0
    """Number of heads whose rows have rotary pairs interleaved; 0: not interleaved."""
    added: float = 0.0
    """Constant that was added to every stored value."""
    decay: bool = False
    """Whether -exp(v) is stored for the values v."""


@define
class Translation:
    """How each tensor is read, by its name in the model."""

    ranges: dict[str, RowRange] = field(factory=dict)
    changes: dict[str, Change] = field(factory=dict)
    joins: dict[str, RowJoin] = field(factory=dict)
    """Matrices stored as several stacks: `RowJoin` with tensor names."""
    infos: dict[str, TensorInfo] = field(factory=dict)
    """Headers that differ from those of `ranges`: of `joins`, and of squeezed
    tensors."""


def translate(stored: StoredTensors, dialect: Dialect, config: Mapping[str, Any]) -> Translation:
    """Translate all names. Unknown names are kept, and the model refuses them. Raises
    CheckpointError for tensors that contradict the dialect."""
    translation = Translation()
    file = stored.files[0]
    rotary = {dialect.modules.get(path, path): key for path, key in dialect.rotary_pairs.items()}
    stacks = {stack for join in dialect.joins.values() for stack in join.stacks}
    for name in stored.tensors:
        module = pattern(name.rpartition(".")[0])
        if name in ROPE_TENSORS or name in DENSE or module in stacks:
            continue
        for path, part, rows in _targets(dialect, stored[name], config, file):
            ours = _named(path, part, name, rows.member)
            if ours in translation.ranges:
                raise CheckpointError(f"{file.path.name}: {ours} is stored twice", DAMAGED)
            translation.ranges[ours] = rows
            info = rows.info(stored.tensors[name])
            if path in rotary:
                heads = _heads(file, dialect.architecture, rotary[path], name, info)
                translation.changes[ours] = Change(heads=heads)
            elif module in dialect.added:
                translation.changes[ours] = Change(added=dialect.added[module])
            elif pattern(name) in dialect.decays:
                translation.changes[ours] = Change(decay=True)
            if pattern(name) in dialect.matrices:
                info = TensorInfo(info.dtype, (math.prod(info.shape),), info.nbytes)
                translation.infos[ours] = info
            if (axes := dialect.axes.get(pattern(name))) is not None and info.shape:
                translation.infos[ours] = attrs.evolve(info, shape=_along(axes, info.shape))
            axis = dialect.squeezed.get(module) if name.endswith(".weight") else None
            # Newer converters keep the one row of a matrix: then nothing is left out.
            given = axis == 0 and info.shape[:1] == (1,) and len(info.shape) == 2
            if axis is not None and axis <= len(info.shape) <= 2 and not given:
                shape = (*info.shape[:axis], 1, *info.shape[axis:])
                translation.infos[ours] = TensorInfo(info.dtype, shape, info.nbytes)
    for path, join in dialect.joins.items():
        _join(translation, stored, path, join)
    return translation


def _along(axes: tuple[int, ...], stored: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of the model's axes (`Dialect.axes`)."""
    known = [stored[-1] if length == 0 else length for length in axes]
    rest = math.prod(stored) // max(1, math.prod(length for length in known if length > 0))
    return tuple(rest if length < 0 else length for length in known)


def _named(path: str, part: str, stored: str, member: int | None) -> str:
    if numbers := _NUMBER.findall(stored):
        path = path.replace("{n}", numbers[0])
    return f"{path.replace(_MEMBER, str(member))}.{part}" if path else part


def _targets(
    dialect: Dialect, stored: Stored, config: Mapping[str, Any], file: GgufFile
) -> Iterator[tuple[str, str, RowRange]]:
    """Yield the model's tensors in one stored tensor: module path, part, rows. The part of a matrix
    in blocks is named after their type."""
    module, _, part = stored.name.rpartition(".")
    shares: Mapping[str, int | str] = {dialect.modules.get(pattern(module)) or module: 1}
    if (whole := dialect.modules.get(pattern(stored.name))) is not None:
        path, _, part = whole.rpartition(".")
        shares = {path: 1}
    elif pattern(module) not in dialect.modules and pattern(module) in dialect.rows:
        shares = dialect.rows[pattern(module)].shares
    if stored.type.dtype is None:
        part = stored.type.name if part == "weight" else f"{part}.{stored.type.name}"
    is_stack = any(_MEMBER in path for path in shares)
    members = range(_stack_size(file, stored)) if is_stack else (None,)
    for path, rows in _split(shares, stored, config, file, is_stack).items():
        for member in members:
            yield path, part, RowRange(stored.name, member, rows)


def _stack_size(file: GgufFile, stored: Stored) -> int:
    if len(stored.shape) < 2 or stored.shape[0] > _MOST_MEMBERS:
        raise CheckpointError(
            f"{file.path.name}: {stored.name} of shape {stored.shape} is not a stack", DAMAGED
        )
    return stored.shape[0]


def _split(
    shares: Mapping[str, int | str],
    stored: Stored,
    config: Mapping[str, Any],
    file: GgufFile,
    is_stack: bool,
) -> dict[str, slice]:
    """Yield the rows of each module in order."""
    if len(shares) == 1:
        return {path: slice(None) for path in shares}
    given = {path: config.get(s) if isinstance(s, str) else s for path, s in shares.items()}
    num_rows = stored.shape[is_stack] if len(stored.shape) > is_stack else 0
    sizes = {path: share for path, share in given.items() if type(share) is int and share > 0}
    whole = sum(sizes.values())
    if len(sizes) < len(shares) or num_rows % whole:
        raise CheckpointError(
            f"{file.path.name}: {stored.name} has {num_rows} rows for parts in the ratio of "
            f"{':'.join(str(share) for share in given.values())}",
            DAMAGED,
        )
    slices, start = {}, 0
    for path, share in sizes.items():
        slices[path] = slice(start, start := start + num_rows // whole * share)
    return slices


def _heads(file: GgufFile, architecture: str, key: str, name: str, info: TensorInfo) -> int:
    """Number of heads of a tensor whose rows are rotary pairs."""
    metadata = file.metadata
    all_heads = metadata.get(f"{architecture}.attention.head_count")
    heads = metadata.get(f"{architecture}.{key}", all_heads)  # omitted if equal
    numbers = _NUMBER.findall(name)
    if isinstance(heads, list):  # one for each layer
        heads = heads[int(numbers[0])] if numbers and int(numbers[0]) < len(heads) else None
    rows = info.shape[0] if info.shape else 0
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise CheckpointError(
            f"{file.path.name}: {name} has {rows} rows for {heads} heads", DAMAGED
        )
    return heads


def _join(found: Translation, stored: StoredTensors, path: str, join: RowJoin) -> None:
    """Add every layer's matrix at that path."""
    for name in stored.tensors:
        module, _, part = name.rpartition(".")
        if pattern(module) != join.stacks[0] or part != "weight":
            continue
        numbers = _NUMBER.findall(name)
        stacks = [
            f"{stack.replace('{n}', numbers[0]) if numbers else stack}.weight"
            for stack in join.stacks
        ]
        shapes = [stored[stack].shape for stack in stacks if stack in stored.tensors]
        ordered = [
            (shape[0], *reversed(shape[1:])) if stack in join.transposed else shape
            for stack, shape in zip(join.stacks, shapes, strict=False)
        ]
        if len(shapes) < len(stacks) or len({(len(s), s[0], s[-1]) for s in ordered}) > 1:
            raise CheckpointError(
                f"{stored.files[0].path.name}: {' and '.join(stacks)} of shapes "
                f"{' and '.join(map(str, shapes))} are not the same heads",
                DAMAGED,
            )
        ours = _named(path, "weight", name, None)
        dtypes = {stored[stack].type.dtype or "float32" for stack in stacks}
        dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
        shape = (ordered[0][0] * sum(s[1] for s in ordered), ordered[0][-1])
        nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
        found.joins[ours] = RowJoin(
            tuple(stacks),
            tuple(
                s
                for s, theirs in zip(stacks, join.stacks, strict=True)
                if theirs in join.transposed
            ),
        )
        found.infos[ours] = TensorInfo(dtype, shape, nbytes)
