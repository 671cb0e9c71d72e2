"""Conversions, for tests of writers and formats: by the installed command `convert`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from inferno.catalog import GROUPS, load_catalog
from inferno.contracts import Command, WriteOptions


def convert(ref: str, to: str, path: Path, options: WriteOptions | None = None, **more: Any) -> Any:
    """Write the model `ref` as the writer `to` does, at `path`, and return what was written. The
    function is that of the package whose command `convert` is installed: `PACKAGE.convert.convert`,
    with `more`. Raises OptionError if there is none, and what it raises."""
    command = load_catalog(groups=GROUPS).named(Command, "convert").item.command
    package = str(command).partition(":")[0].partition(".")[0]
    return import_module(f"{package}.convert").convert(ref, to, path, options, **more)
