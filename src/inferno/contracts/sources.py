"""Places that models come from."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from attrs import field, frozen

from inferno.contracts import lazy


@frozen(kw_only=True)
class FetchOptions:
    """How a source may fetch."""

    revision: str | None = None
    offline: bool = False
    """Use what is on this machine already."""
    progress: bool = False
    """Draw progress bars on stderr."""


@frozen(kw_only=True)
class Source:
    """A place a model reference is looked for."""

    name: str
    describe: str
    """What references of it look like, for "not found" errors: "a directory or file on this
    machine"."""
    matches: Callable[[str], bool] = field(converter=lazy.function)
    """Whether the reference is of this source, from its form and what is on this machine only."""
    fetch: Callable[[str, FetchOptions], Path] = field(converter=lazy.function)
    """The reference as a local path. Raises ModelNotFoundError. Imports no torch."""
    list: Callable[[], Collection[str]] = field(factory=lambda: tuple, converter=lazy.function)
    """References this source can name without asking a network."""
    priority: int = 0
    api_version: int = 1
