"""Chooses the scheme of each stored matrix."""

from __future__ import annotations

import difflib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno.catalog import Catalog, Offer
from inferno.contracts import COMPUTE_DTYPES, Checkpoint, ModelConfig, QuantScheme, TensorInfo
from inferno.errors import OptionError
from inferno.plan.decided import Decided
from inferno.plan.plan import SchemeUse, pattern_of
from inferno.plan.stored import modules_of, unused_tensors


@frozen
class Matrices:
    """The checkpoint's matrices, by scheme."""

    uses: tuple[SchemeUse, ...]
    modules: Mapping[str, str]
    """As `Plan.modules`."""
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
    the tensors of its multi-token-prediction layers if they are used. Raises UnsupportedError."""
    quant_config = checkpoint.config.get("quantization_config") or {}
    held: dict[str, list[tuple[str, dict[str, TensorInfo], Offer[QuantScheme]]]] = defaultdict(list)
    decisions: list[Decided[Any]] = []
    num_plain = 0
    stored = modules_of(checkpoint.tensors, unused_tensors(model)) | modules_of(mtp)
    for path, parts in stored.items():
        matrix = _matrix(parts)
        num_plain += sum(math.prod(info.shape) for p, info in parts.items() if p not in matrix)
        if matrix:
            choice = catalog.scheme_of(matrix, quant_config, path)
            decisions.append(Decided.by("scheme", choice))
            held[choice.item.name].append((path, matrix, choice.offer))
    uses = tuple(
        SchemeUse(
            name=name,
            distribution=found[0][2].distribution,
            layout=found[0][2].item.layout or dtype,
            classes=tuple(dict.fromkeys(path.rpartition(".")[2] for path, _, _ in found)),
            stored=tuple(sorted({info.dtype for _, parts, _ in found for info in parts.values()})),
            count=len(found),
            nbytes=sum(offer.item.nbytes(parts, dtype) for _, parts, offer in found),
        )
        for name, found in held.items()
    )
    modules = _by_pattern({path: name for name, found in held.items() for path, _, _ in found})
    offers = dict.fromkeys(offer for d in decisions for offer in d.offers)
    refusals = dict.fromkeys(refusal for d in decisions for refusal in d.refusals)
    return Decided(Matrices(uses, modules, num_plain), tuple(offers), tuple(refusals))


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


def _matrix(parts: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
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
