"""The store `postgresql`: a database that several servers share."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import RecordStore


@hookimpl
def inferno_stores() -> list[RecordStore]:
    return [
        RecordStore(
            name="postgresql",
            spellings=("postgres",),
            open="inferno_postgres.tables:PostgresTables.open",
        )
    ]
