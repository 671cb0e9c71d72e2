"""A checkpoint that is to be converted, with every matrix readable as a dense one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from inferno.catalog import Catalog, find_architecture
from inferno.contracts import (
    COMPUTE_DTYPES,
    QUANTIZE,
    Architecture,
    Checkpoint,
    DenseMatrices,
    Device,
    FetchOptions,
    KernelNeed,
    ModelConfig,
    QuantScheme,
    RowRange,
    StoredMatrix,
    TensorInfo,
    TextAssets,
)
from inferno.errors import UnsupportedError
from inferno.plan import modules_of, mtp_tensors
from inferno.plan.isq import importance_of
from inferno.plan.opened import model_config, text_assets
from inferno.plan.stored import adapted, matrix_of
from inferno.weights.pairing import join
from inferno_convert.changes import Change, Merged

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn import Weight

PLAIN = frozenset({*COMPUTE_DTYPES, "float64"})
"""Dtypes of tensors that are read as they are stored."""


@frozen
class Quantized:
    """A matrix that a scheme reads."""

    stored: StoredMatrix
    scheme: QuantScheme
    shape: tuple[int, int]


@define(eq=False)
class DenseView:
    """See `contracts.DenseCheckpoint`."""

    checkpoint: Checkpoint
    architecture: Architecture
    model: ModelConfig
    quantized: Mapping[str, Quantized]
    """By the name of the dense tensor: "model.layers.0.mlp.up_proj.weight"."""
    tensors: Mapping[str, TensorInfo]
    catalog: Catalog
    importance: Mapping[str, Any] | None = None
    mtp: frozenset[str] = frozenset()
    changes: Mapping[str, Sequence[tuple[RowRange, Change]]] = field(factory=dict)
    """What adapters make of tensors, by the rows that change."""
    _held: dict[str, Weight] = field(factory=dict)
    """The matrix that was read last."""

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        architecture: Architecture,
        model: ModelConfig,
        catalog: Catalog,
        without: tuple[str, ...] = (),
    ) -> DenseView:
        """View a checkpoint, without tensors whose names match these patterns. Raises
        UnsupportedError for a matrix that no installed scheme reads."""
        quant_config = checkpoint.config.get("quantization_config") or {}
        quantized: dict[str, Quantized] = {}
        tensors: dict[str, TensorInfo] = {}
        for path, parts in modules_of(checkpoint.tensors, without).items():
            matrix = matrix_of(parts)
            if all(info.dtype in PLAIN for info in parts.values()) or not matrix:
                tensors |= {join(path, part): info for part, info in parts.items()}
                continue
            stored = StoredMatrix(path=path, parts=matrix, quant_config=quant_config)
            try:
                scheme = catalog.scheme_of(stored).item
            except UnsupportedError:
                if quant_config or len(parts) > 1:
                    raise
                tensors |= {join(path, part): info for part, info in parts.items()}  # a table
                continue
            name = join(path, "weight")
            shape = scheme.holds(stored, "float32").shape
            if shape is None:  # it is in a tensor
                shape = _load(checkpoint, stored, scheme).shape
            quantized[name] = Quantized(stored, scheme, shape)
            tensors[name] = TensorInfo("float32", shape, 4 * math.prod(shape))
            if "bias" in parts:
                tensors[join(path, "bias")] = parts["bias"]
        return cls(checkpoint, architecture, model, quantized, tensors, catalog)

    @property
    def config(self) -> Mapping[str, Any]:
        fields = dict(self.checkpoint.config)
        fields.pop("quantization_config", None)
        return fields

    @property
    def matrices(self) -> DenseMatrices:
        return DenseMatrices(
            shapes={
                name.removesuffix(".weight"): (info.shape[0], info.shape[1])
                for name, info in self.tensors.items()
                if name.endswith(".weight") and len(info.shape) == 2
            },
            architecture=self.architecture,
            config=self.config,
        )

    def text(self) -> TextAssets:
        return text_assets(self.checkpoint, self.architecture)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        import torch

        if not (changes := self.changes.get(name)):
            return self._read(name, start, stop)
        if all(rows == RowRange(name) for rows, _ in changes):
            changed = self._read(name, start, stop).to(torch.float32, copy=True)
            for _, change in changes:
                change.into(changed, slice(start, stop))
            return changed
        changed = self._read(name, 0, None).to(torch.float32, copy=True)
        for rows, change in changes:
            change.into(rows.of(changed), slice(None))
        return changed[start:stop]

    def _read(self, name: str, start: int, stop: int | None) -> Tensor:
        """Return rows of a tensor without changes."""
        import torch

        if name not in self.quantized:
            values = self.checkpoint.read(name)
            return values[start:stop] if values.ndim else values
        weight = self._weight(name)
        assert weight is not None, "it is quantized"
        stop = weight.shape[0] if stop is None else min(stop, weight.shape[0])
        return weight.rows(torch.arange(start, stop)).float()

    def weight(self, name: str) -> Weight | None:
        return None if self.changes.get(name) else self._weight(name)

    def _weight(self, name: str) -> Weight | None:
        matrix = self.quantized.get(name)
        if matrix is None:
            return None
        if name not in self._held:
            self._held.clear()
            self._held[name] = _load(self.checkpoint, matrix.stored, matrix.scheme)
        return self._held[name]

    def quantizer(self, layout: str) -> Callable[..., tuple[Tensor, ...]] | None:
        need = KernelNeed(op=QUANTIZE, dtype="float32", device=Device("cpu"), layout=layout)
        offer, _ = self.catalog.kernel(need)
        return None if offer is None else offer.item.ops[QUANTIZE]


def _load(checkpoint: Checkpoint, stored: StoredMatrix, scheme: QuantScheme) -> Weight:
    tensors = {part: checkpoint.read(join(stored.path, part)) for part in stored.parts}
    weight: Weight = scheme.load(stored, tensors, dtype="float32")
    return weight


@define(eq=False)
class Source:
    """An opened checkpoint, and what reads it."""

    path: Path
    format: str
    checkpoint: Checkpoint
    """Under the names in which it is stored."""
    architecture: Architecture
    model: ModelConfig
    catalog: Catalog
    merged: Merged | None = None
    """The adapters that are merged into it."""

    @classmethod
    def open(cls, ref: str, fetch: FetchOptions, catalog: Catalog) -> Source:
        """Fetch and open the model, reading headers only. Raises InfernoError."""
        path = catalog.source_of(ref).item.fetch(ref, fetch)
        format, checkpoint = catalog.open(path)
        try:
            architecture = find_architecture(catalog, checkpoint.config).item
            model = model_config(architecture, adapted(checkpoint, architecture))
        except BaseException:
            checkpoint.close()
            raise
        return cls(path, format.item.name, checkpoint, architecture, model, catalog)

    @property
    def seen_by_model(self) -> Checkpoint:
        """The checkpoint under the names of the model."""
        return adapted(self.checkpoint, self.architecture)

    def as_stored(self) -> DenseView:
        """View every tensor, under the stored names."""
        return self._view(self.checkpoint)

    def by_modules(self) -> DenseView:
        """View the tensors under the model's names, if it has others than the checkpoint: those of
        experts that are stored as one, each alone. Else every tensor."""
        seen, stored = self.seen_by_model, self.checkpoint.tensors
        if all(stored.get(name) == info for name, info in seen.tensors.items()):
            return self.as_stored()
        return self._view(seen)

    def _view(self, checkpoint: Checkpoint, without: tuple[str, ...] = ()) -> DenseView:
        given = self.architecture, self.model, self.catalog
        view = DenseView.of(checkpoint, *given, without)
        if self.merged is not None:
            view.changes = self.merged.place(self.seen_by_model, view.tensors)
        return view

    def as_model(self, imatrix: Path | None = None) -> DenseView:
        """View the tensors that the model and its multi-token-prediction layers read, under their
        names, with the importance that a file gives to columns. Raises OptionError for a file of
        another model."""
        unused = getattr(self.model, "unused_tensors", ())
        view = self._view(self.seen_by_model, unused)
        view.mtp = frozenset(mtp_tensors(view.tensors, self.model))
        if imatrix is not None:
            view.importance, _ = importance_of(self.catalog, str(imatrix), view.matrices)
        return view

    def state(self) -> list[tuple[str, int, int]]:
        """Return what changes when the checkpoint does: its files' names, sizes and times."""
        files = [Path(file) for file in getattr(self.checkpoint, "files", ())]
        pairs = [(file, file.stat()) for file in files]
        return [(str(file.absolute()), s.st_size, s.st_mtime_ns) for file, s in pairs]
