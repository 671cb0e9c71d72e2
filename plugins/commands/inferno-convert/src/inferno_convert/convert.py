"""One conversion, from a reference to files with their names."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from inferno.catalog import Catalog, Offer, load_catalog
from inferno.contracts import FetchOptions, Output, WriteOptions, Writer
from inferno.errors import OptionError
from inferno.plan import sha256_of
from inferno_convert.folder import Folder
from inferno_convert.grouping import in_groups
from inferno_convert.merging import read_adapters
from inferno_convert.place import MANIFEST, Place
from inferno_convert.requantized import check_requantized
from inferno_convert.source import Source
from inferno_convert.writing import JOURNAL, Progress, write

_ALWAYS = frozenset({"dtype", "split"})
"""Options that every writer understands."""
_FLAGS = {"group": "--group-size", "act_order": "--act-order", "damping": "--damping"}


@frozen(kw_only=True)
class Conversion:
    """What was written."""

    path: Path
    files: Mapping[str, str]
    """SHA-256 of each file, by name."""
    nbytes: int
    calibrated: bool
    notes: tuple[str, ...] = field(default=())
    """Sentences for the user."""


def convert(
    ref: str,
    to: str,
    path: Path,
    options: WriteOptions | None = None,
    *,
    adapters: Sequence[str] = (),
    calibrate: Path | None = None,
    imatrix: Path | None = None,
    force: bool = False,
    requantize: bool = False,
    fetch: FetchOptions | None = None,
    catalog: Catalog | None = None,
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Conversion:
    """Write the model `ref` as the writer `to` does, at `path`: a file, or a folder if it writes
    one. Low-rank `adapters` are merged into it. `calibrate` is a text file for writers that look at
    activations, `imatrix` an importance matrix for those that weigh errors by it. Continues an
    interrupted run with the same arguments. `requantize` allows to round matrices that are
    quantized already. `say` is told the notes that are known before the work begins. Raises an
    InfernoError."""
    options, catalog = options or WriteOptions(), catalog or load_catalog()
    offer = catalog.named(Writer, to)
    writer = offer.item
    _check_options(writer, options, calibrate, imatrix)
    place = Place(path.absolute(), is_folder=writer.output is None)
    place.check([place.path.name], force=force)
    fetch = fetch or FetchOptions()
    source = Source.open(ref, fetch, catalog)
    try:
        if adapters:
            source.merged = read_adapters(adapters, source, attrs.evolve(fetch, revision=None))
        notes: list[str] = []
        if writer.output is not None:
            view = source.as_model(imatrix)
            output = writer.output(view, options, place.path.name)
            notes += check_requantized(view, output.layouts, to, allowed=requantize)
        else:
            options, grouped = in_groups(source, writer, options)
            notes += grouped
            output = _folder_output(source, writer, options, calibrate, notes, requantize)
        if say is not None:
            for note in (*output.notes, *notes):
                say(note)
        place.check([file.name for file in output.files], force=force)
        key = _key(offer, options, catalog, calibrate, imatrix)
        if source.merged is not None:
            key["adapters"] = source.merged.digests
        with place.locked():
            nbytes, hashes = _written(output, place, ref, key, source, progress or _silent)
    finally:
        source.checkpoint.close()
    return Conversion(
        path=place.path,
        files=hashes,
        nbytes=nbytes,
        calibrated=calibrate is not None,
        notes=(*output.notes, *notes),
    )


def _written(
    output: Output,
    place: Place,
    ref: str,
    key: Mapping[str, Any],
    source: Source,
    progress: Progress,
) -> tuple[int, dict[str, str]]:
    """Write the files and give them their names. Returns their size and SHA-256."""
    full_key = {**key, "source": [list(each) for each in source.state()]}
    hashes = write(output, place, full_key, progress)
    hashes |= {name: hashlib.sha256(text).hexdigest() for name, text in output.texts.items()}
    sizes = {file.name: file.nbytes for file in output.files}
    sizes |= {name: len(text) for name, text in output.texts.items()}
    manifest = _manifest({"ref": ref, **key}, sizes, hashes)
    names = [file.name for file in output.files]
    place.finish(names, {**output.texts, place.manifest.name: manifest})
    return sum(sizes.values()), hashes


def _manifest(
    about: Mapping[str, Any], sizes: Mapping[str, int], hashes: Mapping[str, str]
) -> bytes:
    """Return the description of a result."""
    made = {n: {"nbytes": sizes[n], "sha256": hashes[n]} for n in sorted(hashes)}
    return json.dumps({**about, "files": made}, indent=2).encode() + b"\n"


def _folder_output(
    source: Source,
    writer: Writer,
    options: WriteOptions,
    calibrate: Path | None,
    notes: list[str],
    requantize: bool,
) -> Output:
    """Return the files of a Hugging Face folder. The work may add to the `notes`."""
    encoding = None if writer.encoding is None else writer.encoding(options)
    folder = Folder.of(source, options, encoding)
    layouts = dict.fromkeys(folder.encoded, writer.name)
    notes += check_requantized(folder.view, layouts, writer.name, allowed=requantize)
    if calibrate is None or encoding is None:
        if writer.calibrated:
            notes.append("values were rounded to the nearest: --calibrate FILE lowers the error")
        return folder.output(options, encoding)
    from inferno_convert.calibration import calibrated_pieces

    pieces = calibrated_pieces(folder, encoding, _text(calibrate), notes)
    return folder.output(options, encoding, pieces)


def _check_options(
    writer: Writer, options: WriteOptions, calibrate: Path | None, imatrix: Path | None
) -> None:
    """Raise OptionError for options that the writer would ignore."""
    for a in attrs.fields(WriteOptions):
        if a.name not in writer.options | _ALWAYS and getattr(options, a.name) != a.default:
            raise OptionError(f"{_FLAGS[a.name]} does not apply to {writer.name}", "Leave it out.")
    if options.group is not None and options.group < 1 and options.group != -1:
        raise OptionError(
            f"groups of {options.group} columns",
            "--group-size is at least 1, or -1 for whole rows.",
        )
    damping = options.damping
    if damping is not None and not 0 <= damping < math.inf:
        raise OptionError(f"a damping of {damping}", "Give a share of the diagonal, such as 0.01.")
    if calibrate is not None and not writer.calibrated:
        raise OptionError(f"{writer.name} needs no calibration", "Leave --calibrate out.")
    if imatrix is not None and not writer.weighted:
        raise OptionError(f"{writer.name} weighs no columns", "Leave --imatrix out.")


def _text(calibrate: Path) -> str:
    try:
        return calibrate.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"{calibrate} cannot be read: {error}", "--calibrate takes a text file in UTF-8."
        ) from error


def _key(
    offer: Offer[Writer],
    options: WriteOptions,
    catalog: Catalog,
    calibrate: Path | None,
    imatrix: Path | None,
) -> dict[str, Any]:
    """Return what the written bytes depend on."""
    import torch

    used = {offer.distribution, "inferno"}
    versions = {p.distribution: p.version for p in catalog.plugins if p.distribution in used}
    text = None if calibrate is None else hashlib.sha256(_text(calibrate).encode()).hexdigest()
    return {
        "to": offer.item.name,
        "options": attrs.asdict(options),
        "calibration": text,
        "importance": None if imatrix is None else sha256_of(imatrix),
        "versions": {**versions, "torch": torch.__version__},
    }


def _silent(done: int, total: int, what: str) -> None:
    """Show no progress."""


__all__ = ["JOURNAL", "MANIFEST", "Conversion", "convert"]
