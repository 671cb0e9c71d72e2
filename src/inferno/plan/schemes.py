"""Chooses the scheme of each stored matrix."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen

from inferno import host
from inferno.catalog import Catalog, Offer
from inferno.contracts import (
    COMPUTE_DTYPES,
    Checkpoint,
    HeldMatrix,
    ModelConfig,
    QuantScheme,
    StoredMatrix,
    TensorInfo,
)
from inferno.plan.composite import check_shapes, override_uses, quant_config_of
from inferno.plan.decided import Decided
from inferno.plan.isq import Packed
from inferno.plan.plan import OverrideUse, SchemeUse, by_pattern
from inferno.plan.stored import matrix_of, modules_of, unused_tensors

GROWN = 1.3
"""Times the stored bytes: matrices that take more memory are named."""


@frozen
class Matrices:
    """The checkpoint's matrices, by scheme."""

    uses: tuple[SchemeUse, ...]
    modules: Mapping[str, str]
    """As `Plan.modules`."""
    shapes: Mapping[tuple[str, tuple[int, int]], int]
    """Number of matrices of each layout and shape, where headers tell the shape."""
    held: Mapping[str, tuple[str, tuple[int, int] | None]]
    """Layout and shape in memory of each matrix, by its module's path."""
    overrides: tuple[OverrideUse, ...]
    """Those of a composite checkpoint."""
    num_plain: int
    """Number of elements in tensors without a scheme: norms, biases, a router's corrections."""
    share: int | None = None
    """Bytes of those that one rank has, if it has not all layers; `num_plain` is then its own."""

    @property
    def nbytes(self) -> int:
        return sum(use.nbytes for use in self.uses) if self.share is None else self.share

    @property
    def num_parameters(self) -> int:
        """Number of elements in all tensors, as far as headers tell."""
        sizes = (math.prod(shape) * count for (_, shape), count in self.shapes.items())
        return sum(sizes) + self.num_plain

    @property
    def notes(self) -> tuple[str, ...]:
        """What takes much more memory than it is stored in, whatever its scheme."""
        grown = (use for use in self.uses if use.nbytes > GROWN * use.stored_nbytes > 0)
        return tuple(_expansion(use) for use in grown)


@frozen
class _Choice:
    """A matrix, the scheme that loads it, and what it will be."""

    stored: StoredMatrix
    offer: Offer[QuantScheme]
    held: HeldMatrix
    in_situ: bool = False

    @property
    def path(self) -> str:
        return self.stored.path


@frozen
class StoredMatrices:
    """The checkpoint's matrices as their schemes load them, before any is quantized in situ."""

    choices: tuple[_Choice, ...]
    overrides: tuple[OverrideUse, ...]
    plain: Mapping[str, int]
    """Number of elements in tensors without a scheme, by their module's path."""

    def dense(self, *, requantize: bool = False) -> dict[str, tuple[int, int]]:
        """Return the shapes of the matrices that may be quantized, by path: the plain ones, or
        all."""
        able = (each for each in self.choices if requantize or not each.held.layout)
        return {each.path: each.held.shape for each in able if each.held.shape is not None}

    def packed(self) -> Counter[str]:
        """Return how many matrices are quantized already, by layout."""
        return Counter(each.held.layout for each in self.choices if each.held.layout)

    def held(self, packed: Mapping[str, Packed]) -> dict[str, HeldMatrix]:
        """Return what each will be, by path."""
        return {each.path: each.held for each in self._loaded(packed)}

    def _loaded(self, packed: Mapping[str, Packed]) -> list[_Choice]:
        return [
            each if (to := packed.get(each.path)) is None else _packed(each, to)
            for each in self.choices
        ]

    def loaded(
        self,
        packed: Mapping[str, Packed],
        dtype: str,
        part: Callable[[str], HeldMatrix | None] | None = None,
    ) -> Matrices:
        """Return what they are in memory, once those of `packed` are quantized, or the part of each
        that one rank holds, if it holds any."""
        groups: dict[tuple[str, str, bool], list[_Choice]] = defaultdict(list)
        for whole in self._loaded(packed):
            if (held := whole.held if part is None else part(whole.path)) is not None:
                each = evolve(whole, held=held)
                groups[each.offer.item.name, held.layout, each.in_situ].append(each)
        uses = tuple(
            SchemeUse(
                name=name,
                distribution=choices[0].offer.distribution,
                layout=layout or dtype,
                classes=tuple(dict.fromkeys(each.path.rpartition(".")[2] for each in choices)),
                stored=tuple(
                    sorted({i.dtype for each in choices for i in each.stored.parts.values()})
                ),
                count=len(choices),
                stored_nbytes=sum(i.nbytes for each in choices for i in each.stored.parts.values()),
                nbytes=sum(each.held.nbytes for each in choices),
                in_situ=in_situ,
            )
            for (name, layout, in_situ), choices in groups.items()
        )
        shapes = Counter(
            (layout or dtype, each.held.shape)
            for (_, layout, _), choices in groups.items()
            for each in choices
            if each.held.shape is not None
        )
        named = {each.path: each.offer.item.name for each in self.choices}
        layouts = {
            each.path: (layout or dtype, each.held.shape)
            for (_, layout, _), choices in groups.items()
            for each in choices
        }
        modules, num_plain = by_pattern(named), sum(self.plain.values())
        return Matrices(uses, modules, shapes, layouts, self.overrides, num_plain)


def _expansion(use: SchemeUse) -> str:
    if use.in_situ:
        remedy = f"{use.name} was asked for"
    elif use.layout not in COMPUTE_DTYPES:
        remedy = "no layout of fewer bits has kernels, so a file of more bits costs no more"
    elif set(use.stored) <= set(COMPUTE_DTYPES):
        remedy = f"--dtype {use.stored[0]} holds them as they are stored"
    else:
        remedy = "they are not kept packed, and --isq int4 packs them again"
    count = f"{use.count} {'matrix' if use.count == 1 else 'matrices'}"
    return (
        f"{use.name}: {count} of {host.format_bytes(use.stored_nbytes)} in the checkpoint take "
        f"{host.format_bytes(use.nbytes)} in {use.layout}, {use.nbytes / use.stored_nbytes:.1f} "
        f"times as much memory: {remedy}"
    )


def _packed(stored: _Choice, to: Packed) -> _Choice:
    matrix = to.held if to.held.nbytes else evolve(to.held, nbytes=stored.held.nbytes)
    return _Choice(stored.stored, to.offer, matrix, in_situ=True)


def choose_schemes(
    catalog: Catalog,
    checkpoint: Checkpoint,
    model: ModelConfig,
    dtype: str,
    mtp: Mapping[str, TensorInfo],
) -> Decided[StoredMatrices]:
    """Ask the catalog for the scheme of every matrix that is read: the model's, and those of `mtp`,
    the tensors of its multi-token-prediction layers if they are used. Raises UnsupportedError,
    CheckpointError."""
    check_shapes(checkpoint, catalog, dtype)
    choices: list[_Choice] = []
    decisions: list[Decided[Any]] = []
    plain: dict[str, int] = {}
    modules = modules_of(checkpoint.tensors, unused_tensors(model)) | modules_of(mtp)
    for path, parts in modules.items():
        matrix = matrix_of(parts)
        plain[path] = sum(math.prod(info.shape) for p, info in parts.items() if p not in matrix)
        if matrix:
            quant_config = quant_config_of(checkpoint, path)
            stored = StoredMatrix(path=path, parts=matrix, quant_config=quant_config)
            choice = catalog.scheme_of(stored)
            decisions.append(Decided.by("scheme", choice))
            choices.append(_Choice(stored, choice.offer, choice.item.holds(stored, dtype)))
    offers = dict.fromkeys(offer for d in decisions for offer in d.offers)
    refusals = dict.fromkeys(refusal for d in decisions for refusal in d.refusals)
    named = {each.path: each.offer.item.name for each in choices}
    rows = {each.path: each.held.shape[0] for each in choices if each.held.shape}
    tokens = {path for path, count in rows.items() if count == model.vocab_size}
    overrides = override_uses(checkpoint, named, tokens)
    matrices = StoredMatrices(tuple(choices), overrides, plain)
    return Decided(matrices, tuple(offers), tuple(refusals))
