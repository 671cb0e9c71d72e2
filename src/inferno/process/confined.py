"""Confines the calling process to what its plan needs (`--sandbox`), before it has read anything
of the model and before it has a second thread."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from inferno.catalog import load_catalog
from inferno.contracts import Confinement, Sandbox
from inferno.errors import InfernoError, UnsupportedError, causes
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
    if worse := [what for what in sandbox.lacks() if what not in use.lacks]:
        raise UnsupportedError(
            f"the plan was made where a sandbox holds more; here {worse[0]}",
            "Make a new plan here: `inferno explain REF --sandbox --lock`.",
        )
    sandbox.confine(Confinement(reads=(*use.reads, *reads), writes=tuple(map(str, folders))))


def explained(error: BaseException) -> BaseException:
    """Return what to tell of an error in a confined process: if it comes from a file that is not
    open, how to open it."""
    if not any(isinstance(each, PermissionError) for each in causes(error)):
        return error
    cause = error.cause if isinstance(error, InfernoError) else str(error)
    return UnsupportedError(
        f"{cause}: the sandbox lets the engine read the model's folder, not what its links lead to",
        "Add that folder, if you trust the link: --sandbox-read DIR.",
    )
