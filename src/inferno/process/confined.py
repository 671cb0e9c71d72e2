"""Confines the calling process to what its plan needs (`--sandbox`), before it has read anything
of the model and before it has a second thread."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from inferno.catalog import load_catalog
from inferno.contracts import Confinement, Sandbox
from inferno.plan import Plan


def confine(plan: Plan, *, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> None:
    """Does nothing if the plan has no sandbox. `reads` and `writes` are what this process uses
    besides what the plan says that it reads; folders to write to are made. Raises PluginError,
    UnsupportedError."""
    if (use := plan.sandbox) is None:
        return
    catalog = load_catalog(disable=plan.disable, only=plan.only)
    folders = [Path(folder) for folder in writes]
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sandbox = catalog.named(Sandbox, use.name, use.distribution).item
    sandbox.confine(Confinement(reads=(*use.reads, *reads), writes=tuple(map(str, folders))))
