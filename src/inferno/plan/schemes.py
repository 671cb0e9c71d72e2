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
    Checkpoint,
    HeldMatrix,
    ModelConfig,
    QuantScheme,
    StoredMatrix,
    TensorInfo,
)
from inferno.errors import OptionError
from inferno.plan.composite import check_shapes, override_uses, quant_config_of
from inferno.plan.decided import Decided
from inferno.plan.plan import OverrideUse, SchemeUse, by_pattern
from inferno.plan.stored import matrix_of, modules_of, unused_tensors


@frozen
class Matrices:
    """The checkpoint's matrices, by scheme."""

    uses: tuple[SchemeUse, ...]
    modules: Mapping[str, str]
    """As `Plan.modules`."""
    shapes: Mapping[tuple[str, tuple[int, int]], int]
    """Number of matrices of each layout and shape, where headers tell the shape."""
    overrides: tuple[OverrideUse, ...]
    """Those of a composite checkpoint."""
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
    check_shapes(checkpoint, catalog, dtype)
    held: dict[tuple[str, str], list[_Choice]] = defaultdict(list)
    decisions: list[Decided[Any]] = []
    num_plain = 0
    modules = modules_of(checkpoint.tensors, unused_tensors(model)) | modules_of(mtp)
    for path, parts in modules.items():
        matrix = matrix_of(parts)
        num_plain += sum(math.prod(info.shape) for p, info in parts.items() if p not in matrix)
        if matrix:
            quant_config = quant_config_of(checkpoint, path)
            stored = StoredMatrix(path=path, parts=matrix, quant_config=quant_config)
            choice = catalog.scheme_of(stored)
            decisions.append(Decided.by("scheme", choice))
            will_be = choice.item.holds(stored, dtype)
            held[choice.item.name, will_be.layout].append(_Choice(stored, choice.offer, will_be))
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
    rows = {each.path: each.held.shape[0] for e in held.values() for each in e if each.held.shape}
    tokens = {path for path, count in rows.items() if count == model.vocab_size}
    overrides = override_uses(checkpoint, named, tokens)
    offers = dict.fromkeys(offer for d in decisions for offer in d.offers)
    refusals = dict.fromkeys(refusal for d in decisions for refusal in d.refusals)
    found = Matrices(uses, by_pattern(named), shapes, overrides, num_plain)
    return Decided(found, tuple(offers), tuple(refusals))


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
