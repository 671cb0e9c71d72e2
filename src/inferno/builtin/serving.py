"""What the built-in plugin has for servers only."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import RecordStore


@hookimpl
def inferno_stores() -> list[RecordStore]:
    return [RecordStore(name="sqlite", open="inferno.builtin.sqlite:SqliteTables.open")]
