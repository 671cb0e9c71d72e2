"""A plugin whose hook is misspelt: a Protocol finds it (see `modules`)."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture


@hookimpl
def inferno_architecturs() -> list[Architecture]:
    return []
