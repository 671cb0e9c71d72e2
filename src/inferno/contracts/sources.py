"""Sources: where model references are looked up."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.errors import ModelNotFoundError

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")
"""Patterns of configs, tokenizer and weights; a repository often has the same weights in other
formats, too."""
OTHER_FILES = ("[!0-9]*/*", "consolidated*")
"""Folders (onnx, original), but not those of sentence-transformers' modules (1_Pooling), and
Mistral's second copy of the weights."""
MAX_PARTS = 1000

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)", re.A)


def is_part_of_model(path: str) -> bool:
    """Whether a model with safetensors needs this file of its repository."""

    def matches(patterns: Collection[str]) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in patterns)

    return matches(MODEL_FILES) and not matches(OTHER_FILES)


def parts_of(file: str) -> list[str]:
    """Return all parts of a split file, given any of them: `model-00001-of-00003.gguf`. Raises
    ModelNotFoundError."""
    match = _PART.fullmatch(file)
    if match is None:
        return [file]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MAX_PARTS:
        raise ModelNotFoundError(
            f"{file} is not a valid part", f"Parts are numbered from 1 to at most {MAX_PARTS}."
        )
    return [
        f"{match['stem']}-{i:05}-of-{match['count']}{match['suffix']}" for i in range(1, count + 1)
    ]


_ENCODER = "mmproj"
_KINDS = ("f16", "bf16", "f32", "q8_0")
"""Types of encoders' files, best first: others round more."""


def is_encoder_file(path: str) -> bool:
    """Return whether a GGUF file is called as those with a model's encoder of images are."""
    return path.endswith(".gguf") and _ENCODER in path.rpartition("/")[2].lower()


def encoders_beside(model: str, paths: Iterable[str]) -> list[str]:
    """Return which of `paths` may be the encoder of images of the GGUF file `model`, best first:
    those in its folder, or, of a model in parts without any there, in the folder above. All are
    relative to one folder. The first share the model's name; then the type counts."""
    folder, _, file = model.rpartition("/")
    places = [folder, folder.rpartition("/")[0]] if folder and _PART.fullmatch(file) else [folder]
    known = [path for path in paths if is_encoder_file(path)]
    by_place = ([path for path in known if path.rpartition("/")[0] == place] for place in places)
    words = _words(file)

    def rank(path: str) -> tuple[bool, int, str]:
        name_words = _words(path.rpartition("/")[2])
        kind = next((i for i, each in enumerate(_KINDS) if each in name_words), len(_KINDS))
        return not name_words - {*_KINDS, _ENCODER, "model"} <= words, kind, path

    return sorted(next((group for group in by_place if group), []), key=rank)


def _words(file: str) -> set[str]:
    return {word for word in re.split(r"[^a-z0-9_]+", file.lower().removesuffix(".gguf")) if word}


@frozen(kw_only=True)
class FetchOptions:
    """Options of a fetch."""

    revision: str | None = None
    offline: bool = False
    """Use only what is already on this machine."""
    progress: bool = False
    """Draw progress bars on stderr."""
    encoder: bool = True
    """Fetch the encoder of images beside a GGUF file, too (`encoders_beside`)."""


@frozen(kw_only=True)
class Origin:
    """The version of a model that a reference named when it was looked up."""

    name: str
    """Of what the files came with, such as a Python package's."""
    version: str
    files: Mapping[str, str]
    """File -> its SHA-256 in hexadecimal, as declared where it came from."""


@frozen(kw_only=True)
class Source:
    """A place where model references are looked up."""

    name: str
    describe: str
    """What its references look like, for "not found" errors: "a directory or file on this
    machine"."""
    matches: Callable[[str], bool] = field(converter=lazy.function)
    """Whether the reference belongs to this source, judged by its form and local files only."""
    fetch: Callable[[str, FetchOptions], Path] = field(converter=lazy.function)
    """Returns a local path for the reference. Raises ModelNotFoundError. Imports no torch."""
    list: Callable[[], Collection[str]] = field(factory=lambda: tuple, converter=lazy.function)
    """Returns the references that it can list without network access."""
    origin: Callable[[str], Origin] | None = field(default=None, converter=lazy.optional)
    """Returns the version behind a fetched reference. Plans record it, and a lock or another
    process refuses any other. Reads no file of the model. Raises InfernoError."""
    priority: int = 0
    api_version: int = 1
