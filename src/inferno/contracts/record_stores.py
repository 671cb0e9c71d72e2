"""Stores of records: where a server keeps responses, conversations, files and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from attrs import field, frozen

from inferno.contracts import lazy

T = TypeVar("T")


class Tables(Protocol):
    """The tables of one server, which one thread at a time uses.

    Queries are in the SQL that SQLite and PostgreSQL share, with `?` for each value. Values are
    `str`, `int` (64 bits), `float`, `bytes` and None, and come back as they were: a `str` may have
    any character, NUL too. Columns have the types TEXT, INTEGER, REAL (64 bits) and BLOB.

    What cannot be done raises StoreError, whose text has no password. If the server of the
    database is away, it does so within seconds, and works again once that is back."""

    @property
    def shared(self) -> bool:
        """Whether other servers may use these tables at the same time."""
        ...

    def one(self, query: str, *values: Any) -> Any:
        """Return the first row, a tuple; None for none."""
        ...

    def all(self, query: str, *values: Any) -> list[Any]:
        """Return all rows."""
        ...

    def run(self, query: str, *values: Any) -> int:
        """Change rows, in a transaction only. Returns how many."""
        ...

    def many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Change rows by a query for each of these values, in a transaction only."""
        ...

    def transaction(self, work: Callable[[], T], *, deletes: bool = False) -> T:
        """Do `work`, all of it or nothing, and return what it returns. Transactions of all servers
        run as if one after another, so that what is read in one is true until its end. `work` may
        be called again if it could not be committed, and must not begin a transaction. With
        `deletes`, it makes room: it must be possible on a full disk, and what it deletes is gone
        from the disk where the store can see to that."""
        ...

    def now(self) -> float:
        """Return the time in seconds since 1970, by a clock that all servers share."""
        ...

    def free_bytes(self) -> int | None:
        """Return the free bytes of the disk, if that is known. Any thread may ask."""
        ...

    def close(self) -> None:
        """Let go of it. What is asked after that raises StoreError."""
        ...


@frozen(kw_only=True)
class RecordStore:
    """A database for what a server keeps."""

    name: str
    """What its addresses begin with: `postgresql` for `--store postgresql://...`."""
    open: Callable[[str | None, Sequence[str]], Tables] = field(converter=lazy.function)
    """open(address, schemas) -> its tables. `schemas` are statements that make the tables of each
    version, in the order in which versions added them; those that are missing are run, once.
    Without an address, a store that needs none is in memory. Raises OptionError, whose text has no
    password."""
    spellings: Sequence[str] = ()
    """Other beginnings: `postgres`."""
    api_version: int = 1
