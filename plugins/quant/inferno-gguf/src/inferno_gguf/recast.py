"""A model as files have it, where they have it by another config and other tensors
(`contracts.Recast`): what the writer reads in place of the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from attrs import define, frozen

from inferno.contracts import (
    Architecture,
    DenseCheckpoint,
    DenseMatrices,
    Dialect,
    ModelConfig,
    Recast,
    TensorInfo,
    TextAssets,
    module_pattern,
    tensor_pattern,
)
from inferno.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn.weight import Weight


def recast(source: DenseCheckpoint, dialect: Dialect) -> DenseCheckpoint:
    """Return the source as files of the dialect have it: itself, if they have it as it is. Raises
    CheckpointError for a tensor that cannot be split."""
    changes = None if dialect.recast is None else dialect.recast(source.config)
    return source if changes is None else RecastCheckpoint.of(source, changes)


@frozen
class Rows:
    """Some rows of a tensor of the original."""

    stored: str
    start: int
    stop: int
    whole: bool
    """Whether they are all."""
    factors: Sequence[tuple[int, float]] = ()
    """As in `Recast.factors`."""


@define(eq=False)
class RecastCheckpoint:
    """See `contracts.DenseCheckpoint`."""

    checkpoint: DenseCheckpoint
    model: ModelConfig
    config: Mapping[str, Any]
    rows: Mapping[str, Rows]
    """By the tensors' names."""
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def of(cls, source: DenseCheckpoint, recast: Recast) -> RecastCheckpoint:
        rows = dict(_rows(source.tensors, recast))
        tensors = {name: _info(source.tensors[each.stored], each) for name, each in rows.items()}
        return cls(source, source.architecture.config(recast.config), recast.config, rows, tensors)

    @property
    def architecture(self) -> Architecture:
        return self.checkpoint.architecture

    @property
    def mtp(self) -> frozenset[str]:
        mtp = self.checkpoint.mtp
        return frozenset(name for name, each in self.rows.items() if each.stored in mtp)

    def text(self) -> TextAssets:
        return self.checkpoint.text()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        rows = self.rows[name]
        last = rows.stop if stop is None else min(rows.start + stop, rows.stop)
        if not rows.factors:
            return self.checkpoint.read(rows.stored, rows.start + start, last)
        values = self.checkpoint.read(rows.stored, rows.start + start, last).float()
        return values * _column(rows.factors, len(values), start).view(-1, *[1] * (values.ndim - 1))

    def weight(self, name: str) -> Weight | None:
        rows = self.rows[name]
        return self.checkpoint.weight(rows.stored) if rows.whole and not rows.factors else None

    @property
    def matrices(self) -> DenseMatrices:
        shapes = {
            name.removesuffix(".weight"): (info.shape[0], info.shape[1])
            for name, info in self.tensors.items()
            if name.endswith(".weight") and len(info.shape) == 2
        }
        return attrs.evolve(self.checkpoint.matrices, shapes=shapes, config=self.config)

    @property
    def importance(self) -> Mapping[str, Any] | None:
        """That of the matrix whose rows it has: they have the same inputs."""
        if (known := self.checkpoint.importance) is None:
            return None
        paths = {name: rows.stored.removesuffix(".weight") for name, rows in self.rows.items()}
        return {
            name.removesuffix(".weight"): known[path]
            for name, path in paths.items()
            if path in known
        }

    def quantizer(self, layout: str) -> Callable[..., tuple[Tensor, ...]] | None:
        return self.checkpoint.quantizer(layout)


def originals(source: DenseCheckpoint, layouts: Mapping[str, str]) -> dict[str, str]:
    """Return layouts by the names of the original's tensors."""
    if not isinstance(source, RecastCheckpoint):
        return dict(layouts)
    return {source.rows[name].stored: layout for name, layout in layouts.items()}


def _rows(tensors: Mapping[str, TensorInfo], recast: Recast) -> Iterator[tuple[str, Rows]]:
    stored_of = {**{name: name for name in tensors}, **recast.copies}
    for name, stored in stored_of.items():
        size = tensors[stored].shape[0] if tensors[stored].shape else 1
        names = [f"{path}.{name.rpartition('.')[2]}" for path in _parts(name, recast)] or [name]
        if size % len(names):
            raise CheckpointError(
                f"{name} has {size} rows for {len(names)} matrices of equally many",
                "The checkpoint is damaged: download it again.",
            )
        share = size // len(names)
        for part, target in enumerate(names):
            factors = recast.factors.get(tensor_pattern(target), ())
            factors = factors if any(factor != 1.0 for _, factor in factors) else ()
            yield target, Rows(stored, part * share, (part + 1) * share, len(names) == 1, factors)


def _parts(name: str, recast: Recast) -> list[str]:
    """Return the modules that hold the rows of a tensor; none, if its own does."""
    module = name.rpartition(".")[0]
    number = next((part for part in module.split(".") if part.isdecimal()), "")
    paths = recast.splits.get(module_pattern(name), ())
    return [path.replace("{n}", number) for path in paths]


def _info(stored: TensorInfo, rows: Rows) -> TensorInfo:
    shape = stored.shape if rows.whole else (rows.stop - rows.start, *stored.shape[1:])
    dtype = "float32" if rows.factors else stored.dtype
    size = stored.nbytes * math.prod(shape) // max(1, math.prod(stored.shape))
    return TensorInfo(dtype, shape, 4 * math.prod(shape) if rows.factors else size)


def _column(factors: Sequence[tuple[int, float]], count: int, start: int) -> Tensor:
    """Return the factors of `count` rows from `start` on."""
    import torch

    pieces = [torch.full((number,), factor) for number, factor in factors[:-1]]
    known = torch.cat([*pieces, torch.full((start + count,), factors[-1][1])])
    return known[start : start + count]
