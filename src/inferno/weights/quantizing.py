"""Quantizes a model's dense matrices while they are loaded, one after the other."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import torch
from attrs import define, field, frozen
from torch import Tensor

from inferno.contracts import (
    QUANTIZE,
    CheckpointFormat,
    DenseMatrices,
    QuantScheme,
    lazy,
)
from inferno.errors import OptionError
from inferno.nn import Cut, Dense, Weight
from inferno.plan import InSitu, Opened, sha256_of

_EVERY = 0.1
"""Seconds between two states of the progress bar."""
_WIDTH = 30

log = logging.getLogger("inferno.weights.quantizing")


@define(eq=False)
class Progress:
    """Progress: a bar on a terminal, one line in the log elsewhere."""

    what: str
    total: int
    """Weights to quantize."""
    to: TextIO = field(factory=lambda: sys.stderr)
    done: int = 0
    _begin: float = field(factory=time.monotonic)
    _shown: float = 0.0

    def add(self, weights: int) -> None:
        """Count weights that are done, and show it."""
        self.done += weights
        now = time.monotonic()
        last = self.done >= self.total
        if not self.to.isatty():
            if last:
                log.info("%s", self._text(now))
        elif last or now - self._shown >= _EVERY:
            self._shown = now
            full = _WIDTH * self.done // max(1, self.total)
            bar = "#" * full + "-" * (_WIDTH - full)
            self.to.write(f"\r{self._text(now)} [{bar}]{chr(10) * last}")
            self.to.flush()

    def _text(self, now: float) -> str:
        speed = self.done / max(now - self._begin, 1e-3)
        return (
            f"quantizing to {self.what}: {self.done / 1e6:.0f} of {self.total / 1e6:.0f} million "
            f"weights, {speed / 1e6:.0f} million/s"
        )


@frozen(eq=False)
class Quantizing:
    """In-situ quantization of one model."""

    in_situ: InSitu
    schemes: Mapping[str, QuantScheme]
    importance: Mapping[str, Any]
    """Of columns, by module path: arrays of NumPy."""
    kernels: Mapping[str, Callable[..., Any]]
    """The providers' `quantize`, by layout."""
    progress: Progress

    @classmethod
    def of(
        cls,
        opened: Opened,
        shapes: Mapping[str, tuple[int, int]],
        read: Callable[[str], bool],
    ) -> Quantizing | None:
        """Return the quantization that the plan chose; None if it chose none. `shapes` are those of
        all matrices, by path; `read` says whether one will be read, for the progress bar. Raises
        OptionError if the importance matrix is not the plan's."""
        plan = opened.plan
        if plan.isq is None:
            return None
        chosen = {path: shape for path, shape in shapes.items() if plan.isq.scheme_of(path)}
        total = sum(math.prod(shape) for path, shape in chosen.items() if read(path))
        kernels = {
            use.layout: lazy.resolved(opened.parts.kernels[use.name].ops[use.op])
            for use in plan.kernels
            if use.op == QUANTIZE
        }
        importance = _importance(opened, chosen) if total else {}
        progress = Progress(plan.isq.asked, total)
        return cls(plan.isq, opened.parts.schemes, importance, kernels, progress)

    def __call__(self, path: str, weight: Weight, cut: Cut | None = None) -> Weight:
        """Quantize the matrix stored at that path, or the `cut` of it that is loaded, if it is one
        that the plan quantizes."""
        name = self.in_situ.scheme_of(path)
        if not name or not (isinstance(weight, Dense) or self.in_situ.requantized):
            return weight
        scheme, given = self.schemes[name], dict[str, Any]()
        assert scheme.pack is not None, "the plan refuses schemes that cannot pack"
        values_OI = _values(weight)
        if scheme.weighted and path in self.importance:
            importance_I = _tensor(self.importance[path], values_OI)
            if cut is not None and cut.axis:
                importance_I = cut.of(importance_I[None])[0]
            given["importance"] = importance_I
        if (kernel := self.kernels.get(scheme.layout)) is not None:
            given["quantize"] = kernel
        packed = scheme.pack(values_OI, **given)
        self.progress.add(math.prod(weight.shape))
        return packed


def _values(weight: Weight) -> Tensor:
    if isinstance(weight, Dense):
        return weight.data
    stored = next(chain(weight.parameters(), weight.buffers()), None)
    device = None if stored is None else stored.device
    return weight.rows(torch.arange(weight.shape[0], device=device))


def _tensor(importance_I: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(importance_I).float().to(like.device)


def _importance(opened: Opened, shapes: Mapping[str, tuple[int, int]]) -> Mapping[str, Any]:
    """Read the plan's importance matrix again."""
    in_situ = opened.plan.isq
    if in_situ is None or in_situ.importance is None or in_situ.importance_format is None:
        return {}
    file, parts = Path(in_situ.importance), opened.parts
    if not file.is_file() or sha256_of(file) != in_situ.importance_sha256:
        raise OptionError(
            f"imatrix {file} is not the file that the plan was made with",
            "Make a new plan: start with the options, not with a saved plan.",
        )
    format = parts.catalog.named(CheckpointFormat, in_situ.importance_format).item
    assert format.importance is not None, "the plan read it with this format"
    dense = DenseMatrices(
        shapes=shapes, architecture=parts.architecture, config=opened.checkpoint.config
    )
    return format.importance(file, dense) or {}
