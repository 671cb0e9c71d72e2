"""Writes a model as a Python package: a wheel with the model's files, its licence and a card. It
contains no code and needs no other package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from attrs import frozen
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from inferno.catalog import Catalog
from inferno.contracts import Checkpoint, FetchOptions, is_part_of_model
from inferno.errors import OptionError, UnsupportedError
from inferno.host import format_bytes
from inferno_convert.licences import TEXTS, licence_of, split_card
from inferno_convert.place import explained
from inferno_convert.wheel import Wheel
from inferno_convert.writing import Progress

INDEX_LIMIT = 100_000_000
"""Bytes of a file that PyPI takes from a project that has not asked for more."""

_INIT = '"""The model {name}. This package has its files and no code."""\n'


@frozen(kw_only=True)
class PackageOptions:
    name: str
    version: str = "1.0"
    license: str | None = None
    """SPDX expression; None: as the model says."""
    license_file: Path | None = None
    """The licence's text; None: the files beside the model that have its usual names."""


@frozen
class Packaged:
    """A package that was written."""

    name: str
    path: Path
    nbytes: int
    license: str
    notes: tuple[str, ...]


def package(
    ref: str,
    options: PackageOptions,
    out: Path,
    catalog: Catalog,
    fetch: FetchOptions | None = None,
    progress: Progress = lambda done, total, what: None,
) -> Packaged:
    """Write the model as a wheel into the folder `out`. Raises OptionError if a name, the version
    or the licence is missing or wrong, WriteError if it cannot be written, and what opening the
    model does."""
    name, version = _checked(options)
    source = catalog.source_of(ref).item.fetch(ref, fetch or FetchOptions())
    format, checkpoint = catalog.open(source)
    with closing(checkpoint):
        folder = source if (source / "config.json").is_file() else None
        files = _files(source, folder, checkpoint)
        license = licence_of(ref, options.license, checkpoint, folder)
        texts = _texts(options, folder)
        if not texts and license.startswith("LicenseRef-"):
            raise OptionError(
                f"{license} is a licence that readers cannot look up",
                "Give its text: --license-file LICENSE.",
            )
        facts = _facts(checkpoint, format.item.name)
    module = name.replace("-", "_")
    path = out / f"{module}-{version}-py3-none-any.whl"
    if path.exists():
        raise OptionError(f"{path} exists already", "Give another --version, or remove the file.")
    total, done = sum(file.stat().st_size for file in files.values()), 0

    def wrote(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total, "")

    with explained(path):
        out.mkdir(parents=True, exist_ok=True)
        with Wheel.writing(path, module, version) as wheel:
            wheel.add(f"{module}/__init__.py", _INIT.format(name=name))
            hashes = {
                file: wheel.copy(f"{module}/{file}", place, wrote) for file, place in files.items()
            }
            for text in texts:
                wheel.copy(f"{wheel.folder}/licenses/{text.name}", text, lambda nbytes: None)
            head = _header(name, version, license, texts)
            card = _card(name, {**facts, "licence": license}, files, hashes, folder)
            wheel.add(f"{wheel.folder}/METADATA", f"{head}\n{card}")
        nbytes = path.stat().st_size
    return Packaged(name, path, nbytes, license, _notes(nbytes, texts))


def _checked(options: PackageOptions) -> tuple[str, str]:
    """Return the name and the version in the form that indexes use."""
    try:
        name = canonicalize_name(options.name, validate=True)
    except InvalidName as error:
        raise OptionError(
            f"--name {options.name!r} cannot be the name of a Python package",
            "Use letters, digits and hyphens between them: --name bear-7b-q4.",
        ) from error
    try:
        return name, str(Version(options.version))
    except InvalidVersion as error:
        raise OptionError(
            f"--version {options.version!r} is not a version of a Python package",
            "Write it as 1.0 or 1.0.post1.",
        ) from error


def _files(source: Path, folder: Path | None, checkpoint: Checkpoint) -> dict[str, Path]:
    """Path in the package -> file. A folder keeps what a download of it from a hub would have."""
    if folder is not None:
        inside = {
            file.relative_to(folder).as_posix(): file
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        return {f"model/{path}": file for path, file in inside.items() if is_part_of_model(path)}
    files = tuple(getattr(checkpoint, "files", ()))
    if not files:
        raise UnsupportedError(
            f"{source}: its format does not say which files it has",
            "Convert it first: `inferno convert REF --to safetensors`.",
        )
    return {file.name: file for file in files}


def _texts(options: PackageOptions, folder: Path | None) -> list[Path]:
    if options.license_file is not None:
        return [options.license_file]
    files = {file for text in TEXTS for file in (folder.glob(text) if folder else ())}
    return sorted(file for file in files if file.is_file())


def _facts(checkpoint: Checkpoint, format: str) -> dict[str, str]:
    """What the card says of the model."""
    config = checkpoint.config
    facts = {
        "architecture": ", ".join(config.get("architectures") or ()),
        "format": format,
        "context": f"{config['max_position_embeddings']} tokens"
        if config.get("max_position_embeddings")
        else "",
    }
    return {fact: value for fact, value in facts.items() if value}


def _header(name: str, version: str, license: str, texts: Sequence[Path]) -> str:
    """The fields of METADATA."""
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", name),
        ("Version", version),
        ("Summary", f"The language model {name}: its files, to run as package:{name}"),
        ("License-Expression", license),
        *(("License-File", text.name) for text in texts),
        ("Keywords", "llm,model"),
        ("Description-Content-Type", "text/markdown"),
    ]
    return "".join(f"{field}: {value}\n" for field, value in fields)


def _card(
    name: str,
    facts: Mapping[str, str],
    files: Mapping[str, Path],
    hashes: Mapping[str, str],
    folder: Path | None,
) -> str:
    """A model card in Markdown: how to run the model, what it is, its files, and the model's own
    card."""
    rows = [f"| {fact} | {value} |" for fact, value in facts.items()]
    listed = [
        f"| `{file}` | {format_bytes(place.stat().st_size)} | `{hashes[file]}` |"
        for file, place in files.items()
    ]
    page = folder / "README.md" if folder is not None else None
    text = page.read_text(encoding="utf-8", errors="replace") if page and page.is_file() else ""
    parts = [
        f"# {name}",
        f"```sh\npip install {name}\ninferno serve package:{name}\n```",
        "\n".join(["| | |", "| --- | --- |", *rows]),
        "\n".join(["| file | size | SHA-256 |", "| --- | --- | --- |", *listed]),
        split_card(text)[1].strip(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _notes(nbytes: int, texts: Sequence[Path]) -> tuple[str, ...]:
    notes = []
    if not texts:
        notes.append(
            "the text of the licence is not included, which most licences demand: --license-file"
        )
    if nbytes > INDEX_LIMIT:
        notes.append(
            f"PyPI takes files of up to {format_bytes(INDEX_LIMIT)}, unless it is asked for more"
        )
    return tuple(notes)
