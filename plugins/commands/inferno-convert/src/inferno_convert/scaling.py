"""Moves factors between the modules of a layer, so that columns with large inputs lose less.

Rows of a norm or a matrix are divided by factors, and the columns of the matrices that read its
output are multiplied by them. These readers are found by trial, not by names: the rows are
multiplied by random numbers, and the matrices whose inputs change by exactly these numbers are the
readers. The layer's output is compared before a factor is kept.

Suffixes: N inputs, I columns, D rows of what scales and columns of what reads it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from inferno.contracts import Scaling, Seen
from inferno_convert.layers import Layers, Watching

CHANGED = 1e-3
"""Maximum change of a layer's output, relative to its norm."""
_FACTORS = 0.5, 2.0
"""Range of the random numbers."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""A module's index in a list."""


@frozen
class Pair:
    """A norm or a matrix, and the matrices that read its output, as paths in the layer."""

    source: str
    readers: tuple[str, ...]


@define
class Inputs(Watching):
    """The inputs of a layer's matrices."""

    found: dict[str, Tensor] = field(factory=dict)

    def see(self, path: str, x_TI: Tensor) -> None:
        self.found[path] = x_TI.reshape(-1, x_TI.shape[-1]).clone()


@define(eq=False)
class Scaler:
    """Scales one layer."""

    layers: Layers
    number: int
    tensors: dict[str, Tensor]
    """The layer's tensors, by their names in it. Scaled ones replace them."""
    before: Any
    """The layer's output for the first sequence."""
    scaled: set[str] = field(factory=set)
    """Paths of the matrices whose columns are scaled."""

    def run(self, seen: Mapping[str, Seen], encoding: Scaling) -> None:
        """Scale every pair that can be scaled. `seen` has the matrices that are quantized, by path
        in the layer."""
        inputs, _ = self._run(self.tensors)
        for group in list(self._sources(inputs)):
            for others in self._others(group, inputs):
                pairs = self._pairs(group, others, inputs)
                done = [self._scale(pair, others, seen, encoding) for pair in pairs]
                if any(done):
                    inputs, _ = self._run(self.tensors)
                    break

    def _scale(
        self, pair: Pair, others: Sequence[str], seen: Mapping[str, Seen], encoding: Scaling
    ) -> bool:
        """Scale a pair if the layer's output stays the same. Returns whether it does."""
        readers = [path for path in pair.readers if path in seen]
        if not readers or self.scaled.intersection(pair.readers):
            return False
        weights = [(self.tensors[f"{path}.weight"], seen[path]) for path in readers]
        factor_D = encoding.scale(weights)
        changed = self._changed([(pair, factor_D)], others)
        _, after = self._run({**self.tensors, **changed})
        if distance(self.before, after) > CHANGED:
            return False
        self.tensors |= changed
        self.scaled.update(pair.readers)
        return True

    def _run(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Any]:
        """Return the inputs of the matrices and the layer's output, for the first sequence."""
        inputs = Inputs()
        layer, _ = self.layers.load(self.number, tensors, inputs)
        output = next(self.layers.run(layer, self.number))
        start = f"{self.layers.paths[self.number]}."
        return {path.removeprefix(start): x for path, x in inputs.found.items()}, output

    def _sources(self, inputs: Mapping[str, Tensor]) -> Iterator[list[str]]:
        """Yield the norms and matrices that may have readers: those with as many rows as some
        matrix has columns. Members of a list of modules are one group."""
        columns = {x_NI.shape[1] for x_NI in inputs.values()}
        groups: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for name, tensor in self.tensors.items():
            path, _, part = name.rpartition(".")
            fits = tensor.ndim and len(tensor) in columns
            if part == "weight" and fits and (tensor.ndim == 1 or path in inputs):
                groups[_NUMBER.sub("{}", path), len(tensor)].append(path)
        yield from groups.values()

    def _others(
        self, group: Sequence[str], inputs: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, ...]]:
        """Yield the further tensors that may read a source, beside the matrices that the sequence
        reached: first none, then a router with the experts that it did not choose."""
        yield ()
        size = len(self.tensors[f"{group[0]}.weight"])
        matrices = (name for name, tensor in self.tensors.items() if tensor.ndim == 2)
        others = tuple(
            name
            for name in matrices
            if self.tensors[name].shape[1] == size and name.removesuffix(".weight") not in inputs
        )
        if others and len(group) == 1:
            yield others

    def _pairs(
        self, group: Sequence[str], others: Sequence[str], inputs: Mapping[str, Tensor]
    ) -> Iterator[Pair]:
        """Yield each source with its readers, as found by trial."""
        size = len(self.tensors[f"{group[0]}.weight"])
        random = torch.Generator().manual_seed(size)
        low, high = _FACTORS
        factors = [low + (high - low) * torch.rand(size, generator=random) for _ in group]
        tried = [(Pair(s, ()), 1 / factor_D) for s, factor_D in zip(group, factors, strict=True)]
        after, _ = self._run({**self.tensors, **self._changed(tried, others)})
        for source, factor_D in zip(group, factors, strict=True):
            yield Pair(source, _readers(factor_D, inputs, after))

    def _changed(
        self, pairs: Sequence[tuple[Pair, Tensor]], others: Sequence[str]
    ) -> dict[str, Tensor]:
        """Return the tensors that change if each pair's readers, and `others`, are multiplied by
        these factors."""
        changed: dict[str, Tensor] = {}
        modules = self.layers.modules(self.number)
        for pair, factor_D in pairs:
            offset = float(getattr(modules.get(pair.source), "offset", 0.0))
            for name in (f"{pair.source}.weight", f"{pair.source}.bias"):
                if (tensor := self.tensors.get(name)) is not None:
                    shape = (-1, *[1] * (tensor.ndim - 1))
                    added = offset if name.endswith("weight") else 0.0
                    changed[name] = (tensor + added) / factor_D.view(shape) - added
            for name in (*(f"{path}.weight" for path in pair.readers), *others):
                changed[name] = changed.get(name, self.tensors[name]) * factor_D
        return changed


def _readers(
    factor_D: Tensor, inputs: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Return the matrices whose inputs were multiplied by the factors."""
    paths: list[str] = []
    for path, x_NI in inputs.items():
        y_NI = after.get(path)
        if y_NI is None or y_NI.shape != x_NI.shape or x_NI.shape[1] != len(factor_D):
            continue
        if x_NI.any() and (y_NI - x_NI * factor_D).norm() <= CHANGED * y_NI.norm():
            paths.append(path)
    return tuple(paths)


def distance(one: Any, other: Any) -> float:
    """Return the distance of two outputs of a layer, relative to the norm of the first. An output
    is a tensor, or several whose sum counts."""
    a, b = (_sum(each) for each in (one, other))
    return float((a - b).norm() / a.norm().clamp(min=1e-12))


def _sum(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output.float()
    return torch.stack([each.float() for each in output if isinstance(each, Tensor)]).sum(0)
