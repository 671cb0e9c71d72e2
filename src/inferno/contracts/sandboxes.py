"""Sandboxes: what confines a process that runs a model which is not trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import field, frozen

from inferno.contracts import lazy


@frozen(kw_only=True)
class Confinement:
    """What a process may use, beside the interpreter that runs it, the packages that it may import
    and the system's libraries, all of which it may read."""

    reads: Sequence[str] = ()
    """Files, and folders with all that is in them, that it may read."""
    writes: Sequence[str] = ()
    """Those that it may change too. They exist."""


@frozen(kw_only=True)
class Sandbox:
    """A way to confine the calling process and all that it starts: without a network, without other
    files than a `Confinement` names, without power over other processes."""

    name: str
    confine: Callable[[Confinement], None] = field(converter=lazy.function)
    """confine(what) confines the calling process for good, before it has a second thread. Raises
    UnsupportedError if it cannot. Imports no torch."""
    refuses: Callable[[str], str | None] = field(converter=lazy.function)
    """refuses(device) -> a sentence that says why it cannot confine a process here that computes on
    such a device ("cpu", "cuda"), or None."""
    holds: Callable[[], Sequence[str]] = field(converter=lazy.function)
    """holds() -> what it enforces here, for people."""
    lacks: Callable[[], Sequence[str]] = field(default=tuple, converter=lazy.function)
    """lacks() -> sentences on what a confined process can still do here that it should not."""
    priority: int = 0
    api_version: int = 1
