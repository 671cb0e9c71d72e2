"""The server's SQL and its values as PostgreSQL has them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from psycopg import Connection, pq
from psycopg.adapt import Buffer, Dumper, Loader

_TYPES = {
    "BLOB": "BYTEA",
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    "TEXT": 'TEXT COLLATE "C"',  # in the order of their bytes, whatever the database's language
    "WITHOUT ROWID": "",
}
_TYPE = re.compile(rf"\b({'|'.join(_TYPES)})\b")
_TEXT_OID = 25


def schema(statements: str) -> str:
    """Return statements that make tables with PostgreSQL's types."""
    return _TYPE.sub(lambda found: _TYPES[found[1]], statements)


@lru_cache(maxsize=256)
def query(text: str) -> str:
    """Return a query with psycopg's sign for values."""
    return text.replace("%", "%%").replace("?", "%s")


def adapt(connection: Connection[Any]) -> None:
    """Let texts have NUL, which PostgreSQL refuses: it is written as two characters, and so is what
    begins them."""
    connection.adapters.register_dumper(str, _TextDumper)
    connection.adapters.register_loader(_TEXT_OID, _TextLoader)


class _TextDumper(Dumper):
    oid = _TEXT_OID

    def dump(self, obj: str) -> bytes:
        if "\x00" in obj or "\x01" in obj:
            obj = obj.replace("\x01", "\x01\x01").replace("\x00", "\x01\x02")
        return obj.encode()


class _TextLoader(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        if "\x01" in text:
            text = re.sub("\x01(.)", lambda found: "\x00" if found[1] == "\x02" else "\x01", text)
        return text
