"""Sources: where model references are looked up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from attrs import field, frozen

from inferno.contracts import lazy


@frozen(kw_only=True)
class FetchOptions:
    """Options of a fetch."""

    revision: str | None = None
    offline: bool = False
    """Use only what is already on this machine."""
    progress: bool = False
    """Draw progress bars on stderr."""


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
