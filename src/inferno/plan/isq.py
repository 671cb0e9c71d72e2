"""Chooses what each dense matrix is quantized to while the model is loaded."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attrs import frozen

from inferno.catalog import Catalog, Offer
from inferno.contracts import (
    Architecture,
    Checkpoint,
    DenseMatrices,
    HeldMatrix,
    QuantMix,
    QuantScheme,
    Refused,
)
from inferno.errors import OptionError, PluginError
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.plan import InSitu, InSituUse, by_pattern

STAYS = "none"
"""In a rule: leave these matrices as they are."""
_SHOWN = 3
_COARSE_BITS = 6.2
"""On a trained model of 135 million parameters, types of 5.5 and 6.0 bits cost 7 to 11 % of
perplexity, those of 6.6 bits less than 1 %."""
_CHUNK = 1 << 20


@frozen
class Packed:
    """What a matrix will be, and why."""

    offer: Offer[QuantScheme]
    held: HeldMatrix
    why: str


@frozen
class IsqChoice:
    """The decision about a model's dense matrices."""

    in_situ: InSitu
    packed: Mapping[str, Packed]
    """By path; the others stay as they are."""


@frozen
class _Asked:
    """`--isq`, parsed: a name for all matrices, and rules for some."""

    base: str | None
    rules: tuple[tuple[str, str], ...]
    """Patterns of module paths and names; the first that matches counts."""


def _parsed(text: str) -> _Asked:
    base, rules = None, []
    for item in (part.strip() for part in text.split(",")):
        pattern, equals, name = (part.strip() for part in item.rpartition("="))
        if not name or (equals and not pattern):
            raise OptionError(
                f"isq {text!r}: {item!r} is not a name or a rule",
                "Write NAME,PATTERN=NAME,..., such as 'q4_k_m,model.layers.0.*=q8_0'.",
            )
        if equals:
            rules.append((pattern, name))
        elif base is None:
            base = name
        else:
            raise OptionError(
                f"isq {text!r} names both {base} and {name}",
                f"Name one for all matrices, and rules for some: '{base},PATTERN={name}'.",
            )
    return _Asked(base, tuple(rules))


def spelled(name: str) -> str:
    """Return a name without what never matters: q4km for Q4_K_M and q4-k-m."""
    return re.sub(r"[-_ ]", "", name.lower())


@frozen
class _Names:
    """What can be named: schemes that quantize, and the formats' mixes."""

    catalog: Catalog

    def scheme(self, name: str) -> Offer[QuantScheme] | None:
        offers = {
            offer.item.name: offer
            for offer in self.catalog.of("inferno_quant_schemes")
            if offer.item.pack is not None and _is_called(offer.item, name)
        }
        return self.catalog.named(QuantScheme, next(iter(offers))) if offers else None

    def mix(self, name: str) -> QuantMix | None:
        mixes = [
            (offer, mix)
            for offer in self.catalog.of("inferno_checkpoint_formats")
            for mix in offer.item.mixes
            if _is_called(mix, name)
        ]
        if len(mixes) > 1:
            both = " and ".join(offer.distribution for offer, _ in mixes)
            raise PluginError(
                f"{both} both have a mix {name!r}", "Disable one of them: --disable NAME"
            )
        return mixes[0][1] if mixes else None

    def unknown(self, name: str) -> OptionError:
        """The error for a name that nothing has: similar names first."""
        schemes = [offer.item for offer in self.catalog.of("inferno_quant_schemes")]
        able = {scheme.name for scheme in schemes if scheme.pack is not None}
        able |= {
            mix.name
            for offer in self.catalog.of("inferno_checkpoint_formats")
            for mix in offer.item.mixes
        }
        near = difflib.get_close_matches(name.lower(), sorted(able), n=len(able), cutoff=0.5)
        names = ", ".join(dict.fromkeys([*near, *sorted(able)])) or "none is installed"
        known = any(scheme.name == name for scheme in schemes)
        return OptionError(
            f"scheme {name!r} cannot quantize while loading"
            if known
            else f"there is no quantization scheme {name!r}",
            f"{self.catalog.hint('scheme', name)} Those that quantize while loading: "
            f"{names}.".lstrip(),
        )


def _is_called(item: QuantScheme | QuantMix, name: str) -> bool:
    return spelled(name) in {spelled(each) for each in (item.name, *item.spellings)}


def choose_isq(
    catalog: Catalog,
    options: Options,
    dense: DenseMatrices,
    dtype: str,
    again: Mapping[str, int],
) -> Decided[IsqChoice]:
    """Choose a scheme for each matrix of `dense` that is to be quantized, or a fallback if its
    shape does not fit. `again` says how many of the checkpoint's are quantized already, by layout.
    Raises OptionError."""
    text, imatrix = options.isq, options.imatrix
    assert text is not None, "called if the user asked for it"
    parsed, names = _parsed(text), _Names(catalog)
    wished = _wished(parsed, names, dense, weighted=imatrix is not None)
    if not dense.shapes:
        raise OptionError(
            f"isq {text}: matrices of this checkpoint are quantized already ({counted(again)}), "
            "and would be rounded a second time: both errors add up, and more bits bring nothing "
            "back",
            "Leave --isq out, or name the original checkpoint. Without it: --requantize, as for "
            "`inferno convert`.",
        )
    packed: dict[str, Packed] = {}
    stay: dict[str, list[str]] = defaultdict(list)
    for path, (scheme, why) in wished.items():
        try:
            packed[path] = _fitting(catalog, scheme, dense.shapes[path], dtype, why)
        except Refused as refused:
            stay[str(refused)].append(path)
    notes = []
    if options.requantize and again:
        notes.append(rounded_twice(again))
    notes += _coarse(packed, dense)
    notes += [f"{_some(paths)} as they are: {reason}" for reason, paths in stay.items()]
    unsized = {p.offer.item.name for p in packed.values() if p.offer.item.packs is None}
    notes += [
        f"memory is planned for the weights before they become {name}: less will be used"
        for name in sorted(unsized)
    ]
    importance, format = importance_of(catalog, imatrix, dense) if imatrix else (None, None)
    if importance is not None:
        without = [
            path for path, p in packed.items() if p.offer.item.weighted and path not in importance
        ]
        notes += [f"{imatrix} has no importance for {_some(without)}"] if without else []
    uses = defaultdict[tuple[str, str], list[str]](list)
    for path, each in packed.items():
        uses[each.offer.item.name, each.why].append(path)
    in_situ = InSitu(
        asked=text,
        requantized=options.requantize,
        modules=by_pattern(
            {path: packed[path].offer.item.name if path in packed else "" for path in dense.shapes}
        ),
        uses=tuple(
            InSituUse(scheme=name, why=why, modules=described(paths), count=len(paths))
            for (name, why), paths in uses.items()
        ),
        importance=str(Path(imatrix).absolute()) if imatrix else None,
        importance_format=format,
        importance_sha256=sha256_of(Path(imatrix)) if imatrix else None,
    )
    offers = {id(each.offer): ("in-situ scheme", each.offer) for each in packed.values()}
    return Decided(IsqChoice(in_situ, packed), tuple(offers.values()), notes=tuple(notes))


def _coarse(packed: Mapping[str, Packed], dense: DenseMatrices) -> list[str]:
    """Return a note for each scheme that has few bits."""
    bits: dict[str, float] = {}
    for path, each in packed.items():
        count = math.prod(dense.shapes[path])
        if 0 < each.held.nbytes * 8 < _COARSE_BITS * count:
            bits.setdefault(each.offer.item.name, each.held.nbytes * 8 / count)
    return [
        f"{name} has {size:.1f} bits a weight: answers get worse, a small model's the most; "
        "`inferno eval` measures it"
        for name, size in bits.items()
    ]


def rounded_twice(again: Mapping[str, int]) -> str:
    """Return a note on matrices that were quantized already, counted by layout."""
    return f"quantized a second time, both errors add up: {counted(again)}"


def counted(again: Mapping[str, int]) -> str:
    return ", ".join(f"{count} in {layout}" for layout, count in again.items())


def _wished(
    wanted: _Asked, names: _Names, dense: DenseMatrices, *, weighted: bool
) -> dict[str, tuple[Offer[QuantScheme], str]]:
    """Return the scheme that `wanted` means for each matrix, whatever its shape, and why."""
    wishes: dict[str, tuple[Offer[QuantScheme], str]] = {}
    if wanted.base is not None:
        if (mix := names.mix(wanted.base)) is not None:
            for path, mixed in mix.choose(dense, weighted).items():
                if path in dense.shapes:
                    wishes[path] = _named(names, mixed.scheme), f"{mix.name}: {mixed.why}"
        else:
            offer = _named(names, wanted.base)
            wishes = {path: (offer, "all layers") for path in dense.shapes if _in_layer(path)}
    matched: set[str] = set()
    for pattern, name in wanted.rules:
        rule = [path for path in dense.shapes if fnmatchcase(path, pattern)]
        if not rule and dense.shapes:
            near = difflib.get_close_matches(pattern, list(dense.shapes), n=_SHOWN, cutoff=0)
            raise OptionError(
                f"isq: no dense matrix has a path like {pattern!r}",
                f"Paths are those of the checkpoint's modules: {', '.join(near)}.",
            )
        stays = spelled(name) == STAYS
        if not stays and names.scheme(name) is None and names.mix(name) is not None:
            raise OptionError(
                f"isq: the rule {pattern}={name} names a mix",
                "A rule gives one scheme to the matrices that it matches, such as q8_0.",
            )
        for path in (path for path in rule if path not in matched):
            matched.add(path)
            wishes.pop(path, None)
            if not stays:
                wishes[path] = _named(names, name), f"the rule {pattern}"
    return {path: wishes[path] for path in dense.shapes if path in wishes}


def _named(names: _Names, name: str) -> Offer[QuantScheme]:
    if (offer := names.scheme(name)) is None:
        raise names.unknown(name)
    return offer


def _in_layer(path: str) -> bool:
    """Whether it belongs to a numbered module: neither embedding nor output head does."""
    return any(part.isdecimal() for part in path.split("."))


def _fitting(
    catalog: Catalog, wished: Offer[QuantScheme], shape: tuple[int, int], dtype: str, why: str
) -> Packed:
    """Return what the scheme, or the first fallback that fits, makes of a matrix. Raises
    Refused."""
    if wished.item.packs is None:
        matrix = HeldMatrix(layout=wished.item.layout, shape=shape, nbytes=0)
        return Packed(wished, matrix, why)
    try:
        return Packed(wished, wished.item.packs(shape, dtype), why)
    except Refused as refused:
        reason = str(refused)
    for name in wished.item.instead:
        offer = catalog.named(QuantScheme, name, wished.distribution)
        if offer.item.packs is None:
            continue
        try:
            matrix = offer.item.packs(shape, dtype)
        except Refused:
            continue
        return Packed(offer, matrix, f"instead of {wished.item.name}: {reason}")
    raise Refused(reason)


def quantizable(
    architecture: Architecture, checkpoint: Checkpoint, dense: Mapping[str, tuple[int, int]]
) -> DenseMatrices:
    """Return the plain matrices that may be quantized: all but routers and the like."""
    excluded = architecture.unquantized
    return DenseMatrices(
        shapes={
            path: shape
            for path, shape in dense.items()
            if not any(fnmatchcase(path, pattern) for pattern in excluded)
        },
        architecture=architecture,
        config=checkpoint.config,
    )


def importance_of(
    catalog: Catalog, imatrix: str, dense: DenseMatrices
) -> tuple[Mapping[str, Any], str]:
    """Read an importance matrix: arrays by module path, and the name of the format that knows it.
    Raises OptionError."""
    file = Path(imatrix)
    if not file.is_file():
        raise OptionError(f"imatrix {imatrix}: there is no such file", "Check its name.")
    able = [
        offer.item
        for offer in catalog.of("inferno_checkpoint_formats")
        if offer.item.importance is not None
    ]
    for format in able:
        if (arrays := format.importance(file, dense)) is not None:
            return arrays, format.name
    raise OptionError(
        f"no installed format can read the importance matrix {imatrix}",
        f"Formats that read some: {', '.join(f.name for f in able) or 'none is installed'}.",
    )


def sha256_of(file: Path) -> str:
    """Return the hash of a file's content."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def described(paths: Iterable[str]) -> str:
    """Name modules briefly: `v_proj 0-1 4, lm_head`, with the numbers of their layers."""
    layers = defaultdict[str, set[int]](set)
    for path in paths:
        parts = path.split(".")
        number = next((int(part) for part in parts if part.isdecimal()), None)
        layers[parts[-1]] |= set() if number is None else {number}
    return ", ".join(f"{name} {_ranges(sorted(ids))}".rstrip() for name, ids in layers.items())


def _ranges(numbers: list[int]) -> str:
    """Write ascending numbers as `0-3 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)


def _some(paths: list[str]) -> str:
    shown = ", ".join(paths[:_SHOWN]) + (", ..." if len(paths) > _SHOWN else "")
    return f"{len(paths)} matrices ({shown})" if len(paths) > 1 else shown
