"""Chooses the scheme of each stored matrix."""

from __future__ import annotations

import difflib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from attrs import frozen

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
from inferno.errors import CheckpointError, OptionError
from inferno.plan.decided import Decided
from inferno.plan.plan import SchemeUse, pattern_of
from inferno.plan.stored import modules_of, unused_tensors


@frozen
class Matrices:
    """The checkpoint's matrices, by scheme."""

    uses: tuple[SchemeUse, ...]
    modules: Mapping[str, str]
    """As `Plan.modules`."""
    shapes: Mapping[tuple[str, tuple[int, int]], int]
    """Number of matrices of each layout and shape, where headers tell the shape."""
    num_plain: int
    """Number of elements in tensors without a scheme: norms, biases, a router's corrections."""

    @property
    def nbytes(self) -> int:
        return sum(use.nbytes for use in self.uses)


def choose_schemes(
    catalog: Catalog,
    checkpoint: Checkpoint,
    model: ModelConfig,
    dtype: str,
    mtp: Mapping[str, TensorInfo],
) -> Decided[Matrices]:
    """Ask the catalog for the scheme of every matrix that is read: the model's, and those of `mtp`,
    the tensors of its multi-token-prediction layers if they are used. Raises UnsupportedError,
    CheckpointError."""
    quant_config = checkpoint.config.get("quantization_config") or {}
    if not isinstance(quant_config, Mapping):
        raise CheckpointError(
            f"config.json: quantization_config is {quant_config!r}", "It must be an object."
        )
    held: dict[tuple[str, str], list[_Choice]] = defaultdict(list)
    decisions: list[Decided[Any]] = []
    num_plain = 0
    modules = modules_of(checkpoint.tensors, unused_tensors(model)) | modules_of(mtp)
    for path, parts in modules.items():
        matrix = matrix_parts(parts)
        num_plain += sum(math.prod(info.shape) for p, info in parts.items() if p not in matrix)
        if matrix:
            stored = StoredMatrix(path=path, parts=matrix, quant_config=quant_config)
            choice = catalog.scheme_of(stored)
            decisions.append(Decided.by("scheme", choice))
            found = choice.item.holds(stored, dtype)
            held[choice.item.name, found.layout].append(_Choice(stored, choice.offer, found))
    uses = tuple(
        SchemeUse(
            name=name,
            distribution=found[0].offer.distribution,
            layout=layout or dtype,
            classes=tuple(dict.fromkeys(each.path.rpartition(".")[2] for each in found)),
            stored=tuple(sorted({i.dtype for each in found for i in each.stored.parts.values()})),
            count=len(found),
            nbytes=sum(each.held.nbytes for each in found),
        )
        for (name, layout), found in held.items()
    )
    shapes = Counter(
        (layout or dtype, each.held.shape)
        for (_, layout), found in held.items()
        for each in found
        if each.held.shape is not None
    )
    named = {each.path: name for (name, _), found in held.items() for each in found}
    offers = dict.fromkeys(offer for d in decisions for offer in d.offers)
    refusals = dict.fromkeys(refusal for d in decisions for refusal in d.refusals)
    return Decided(
        Matrices(uses, _by_pattern(named), shapes, num_plain), tuple(offers), tuple(refusals)
    )


@frozen
class _Choice:
    """A matrix, the scheme that loads it, and what it will be."""

    stored: StoredMatrix
    offer: Offer[QuantScheme]
    held: HeldMatrix

    @property
    def path(self) -> str:
        return self.stored.path


def choose_isq(catalog: Catalog, name: str) -> Decided[QuantScheme]:
    """Choose the scheme that quantizes while loading. Raises OptionError, which lists those that
    can, similar names first."""
    able = {o.item.name for o in catalog.of("inferno_quant_schemes") if o.item.pack is not None}
    if name not in able:
        known = {offer.item.name for offer in catalog.of("inferno_quant_schemes")}
        near = difflib.get_close_matches(name, sorted(able), n=len(able), cutoff=0.5)
        names = ", ".join(dict.fromkeys([*near, *sorted(able)]))
        raise OptionError(
            f"scheme {name!r} cannot quantize while loading"
            if name in known
            else f"there is no quantization scheme {name!r}",
            f"{catalog.hint('scheme', name)} Those that quantize while loading: "
            f"{names or 'none is installed'}.".lstrip(),
        )
    offer = catalog.named(QuantScheme, name)
    note = f"memory is planned for the weights before they become {name}: less will be used"
    return Decided(offer.item, (("in-situ scheme", offer),), notes=(note,))


def matrix_parts(parts: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Return the parts that a scheme holds: none for a norm."""
    matrix = {part: info for part, info in parts.items() if part != "bias"}
    if all(info.dtype in COMPUTE_DTYPES for info in matrix.values()):  # only a "weight" can be one
        matrix = {p: info for p, info in matrix.items() if p == "weight" and len(info.shape) == 2}
    return matrix


def _by_pattern(schemes: Mapping[str, str]) -> dict[str, str]:
    """Name the most common scheme of each pattern once, and the exceptions by their whole path."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path, name in schemes.items():
        counts[pattern_of(path)][name] += 1
    usual = {pattern: count.most_common(1)[0][0] for pattern, count in counts.items()}
    return usual | {p: name for p, name in schemes.items() if usual[pattern_of(p)] != name}
