"""Models that a family computes, published under another class: their `config.json` and their
tensors have other names, but the arithmetic is the family's. Imports no torch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import evolve, field, frozen

from inferno.contracts import lazy
from inferno.contracts.architectures import Architecture
from inferno.contracts.attention import COMPUTE_DTYPES
from inferno.contracts.checkpoints import Checkpoint, StoredMatrix, TensorInfo, held
from inferno.contracts.dialect import Dialect
from inferno.contracts.rows import RowRange, RowsView
from inferno.errors import CheckpointError, UnsupportedError

_READ = "spelled_as"
"""Field of a config that has been read: the class that it was published under."""
_DENSE = (0, 1, 1)
"""How a dense tensor lies along the rows, as in `Along`."""
_APART = "Use the original checkpoint, or one in which the matrices are apart."


@frozen
class Fused:
    """A stored matrix that holds several of the model's, one after the other along its rows."""

    shares: Mapping[str, int | str]
    """Module path in the model -> its share of the rows: an integer, or the field of the family's
    `config.json` that has it."""
    groups: str = ""
    """Field with the number of equal parts of the rows, each of which has rows of all the modules
    in these shares. Empty: one part."""


@frozen(kw_only=True)
class Spelling:
    """How checkpoints of another class write a model that a family computes. `{n}` in a path is a
    layer's index."""

    name: str
    """The class in their `config.json`."""
    aliases: tuple[str, ...] = ()
    """Other classes of the same."""
    model_types: tuple[str, ...] = ()
    """As in `Architecture`."""
    fields: Mapping[str, str] = field(factory=dict)
    """Field of their `config.json` -> the family's, where it has another name."""
    fixed: Mapping[str, Any] = field(factory=dict)
    """Field of their `config.json` -> the value that all published models have. Another value is
    refused; a field that is absent or null is taken to have this one."""
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = field(
        default=None, converter=lazy.optional
    )
    """config(fields) -> the family's `config.json`, from their own, under the names above. Raises
    UnsupportedError for what the family does not compute. Imports no torch."""
    modules: Mapping[str, str] = field(factory=dict)
    """Module path, or a tensor's full name, in their checkpoints -> in the model. Others have the
    family's names."""
    fused: Mapping[str, Fused] = field(factory=dict)
    """Module path in their checkpoints -> the model's modules that it holds."""
    drafts: bool = False
    """Whether the layers of these checkpoints that predict further tokens are the family's, too.
    Otherwise they are not read."""
    unused: tuple[str, ...] = ()
    """Regular expressions of the names of tensors that the model does not read."""
    checkpoints: tuple[str, ...] = ()
    """Published models, for listings."""

    def read(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the family's `config.json`; one that has been read as it is."""
        if config.get(_READ) == self.name:
            return config
        for name, value in self.fixed.items():
            if config.get(name) not in (None, value):
                raise UnsupportedError(
                    f"{self.name} with {name} {config[name]} cannot run here",
                    f"Use a model with {value} there, as all published ones have.",
                )
        fields = {self.fields.get(name, name): value for name, value in config.items()}
        fields = dict(self.config(fields)) if self.config is not None else fields
        return {**fields, _READ: self.name}


def spelled(
    architecture: Architecture, spelling: Spelling, dialects: Mapping[str, Dialect] | None = None
) -> Architecture:
    """Return the declaration of another class that the family's code computes: its config is read,
    and its tensors are viewed, under the family's names. `dialects` are as in `Architecture`, for
    files of this class in other formats: they map to the family's names."""
    return evolve(
        architecture,
        name=spelling.name,
        aliases=spelling.aliases,
        model_types=spelling.model_types,
        config=partial(_read, architecture.config, spelling),
        adapt=partial(_adapted, architecture.adapt, spelling),
        mtp=architecture.mtp if spelling.drafts else None,
        dialects={form: _marked(each, spelling) for form, each in (dialects or {}).items()},
        checkpoints=spelling.checkpoints,
    )


def _marked(dialect: Dialect, spelling: Spelling) -> Dialect:
    """Return the dialect, whose files give the family's config, with the mark that `read`
    leaves."""
    return evolve(dialect, constants={**dialect.constants, _READ: spelling.name})


def _read(
    read: Callable[[Mapping[str, Any]], Any], spelling: Spelling, config: Mapping[str, Any]
) -> Any:
    return read(spelling.read(config))


def _adapted(
    adapt: Callable[[Checkpoint], Checkpoint] | None, spelling: Spelling, checkpoint: Checkpoint
) -> Checkpoint:
    config = spelling.read(checkpoint.config)
    view = _Respelled(checkpoint, _ranges(checkpoint, spelling, config), read=config)
    return view if adapt is None else adapt(view)


@frozen(eq=False)
class _Respelled(RowsView):
    config: Mapping[str, Any] = field(kw_only=True, alias="read")


def _ranges(
    checkpoint: Checkpoint, spelling: Spelling, config: Mapping[str, Any]
) -> dict[str, RowRange]:
    modules = [(_pattern(path), new) for path, new in spelling.modules.items()]
    fused = [(_pattern(path), parts) for path, parts in spelling.fused.items()]
    unused = [re.compile(pattern) for pattern in spelling.unused]
    ranges: dict[str, RowRange] = {}
    stored = defaultdict[str, dict[str, TensorInfo]](dict)
    for name, info in checkpoint.tensors.items():
        path, _, part = name.rpartition(".")
        stored[path][part] = info
    for name in checkpoint.tensors:
        if any(pattern.fullmatch(name) for pattern in unused):
            continue
        path, _, part = name.rpartition(".")
        holding = ((match, parts) for pattern, parts in fused if (match := pattern.fullmatch(path)))
        for match, parts in holding:
            ranges |= _split(checkpoint, name, stored[path], parts, match.groupdict(), config)
            break
        else:
            ranges[_renamed(modules, name) or _joined(_renamed(modules, path) or path, part)] = (
                RowRange(name)
            )
    return ranges


def _joined(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _renamed(modules: list[tuple[re.Pattern[str], str]], name: str) -> str:
    """Return the model's name; empty: it has no other."""
    for pattern, new in modules:
        if match := pattern.fullmatch(name):
            return new.format(**match.groupdict())
    return ""


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\{n\}", r"(?P<n>\d+)"))


def _split(
    checkpoint: Checkpoint,
    name: str,
    stored: Mapping[str, TensorInfo],
    fused: Fused,
    numbers: Mapping[str, str],
    config: Mapping[str, Any],
) -> dict[str, RowRange]:
    module, _, part = name.rpartition(".")
    groups = _number(config, fused.groups) if fused.groups else 1
    shares = {path: _number(config, share) for path, share in fused.shares.items()}
    info = stored[part]
    place: tuple[int, int, int] | None = _DENSE
    if part != "bias" and (part != "weight" or info.dtype not in COMPUTE_DTYPES):
        rows, place = _packed(checkpoint, module, stored, part)
    else:
        rows = info.shape[0]
    total = sum(shares.values()) * groups
    if rows % total:
        raise CheckpointError(
            f"{name} has {rows} rows, which is not divisible by {total}",
            "Check config.json: the numbers of heads are not those of the weights.",
        )
    size, start, ranges = rows // total, 0, dict[str, RowRange]()
    for path, share in shares.items():
        stop = start + share * size
        ranges[f"{path.format(**numbers)}.{part}"] = _range(name, start, stop, groups, place)
        start = stop
    return ranges


def _range(
    name: str, start: int, stop: int, groups: int, place: tuple[int, int, int] | None
) -> RowRange:
    if place is None:
        return RowRange(name)  # it is the same for all rows
    axis, values, stored = place
    if start % values or stop % values:
        raise UnsupportedError(
            f"{name} holds several of the model's matrices, and one, in rows {start} to {stop}, "
            f"does not begin and end with blocks of {values} rows",
            _APART,
        )
    span = slice(start // values * stored, stop // values * stored)
    return RowRange(name, rows=span, groups=groups, axis=axis)


def _packed(
    checkpoint: Checkpoint, module: str, stored: Mapping[str, TensorInfo], part: str
) -> tuple[int, tuple[int, int, int] | None]:
    """Return how many rows a quantized matrix has, and how its tensor `part` lies along them; None:
    it is the same for all rows."""
    parts = {name: info for name, info in stored.items() if name != "bias"}
    given = checkpoint.config.get("quantization_config")
    matrix = StoredMatrix(
        path=module, parts=parts, quant_config=given if isinstance(given, Mapping) else {}
    )
    known = held(checkpoint, matrix)
    if known.shape is None or not known.along:
        raise UnsupportedError(
            f"{module} holds several of the model's matrices, and its scheme does not say how its "
            "tensors lie along the rows",
            _APART,
        )
    along = known.along.get(part)
    return known.shape[0], None if along is None else along[0]


def _number(config: Mapping[str, Any], share: int | str) -> int:
    number = config.get(share) if isinstance(share, str) else share
    if type(number) is not int or number < 1:
        raise CheckpointError(
            f"config.json: {share} is {number!r}", "It must be a whole number of at least 1."
        )
    return number
