"""The tables of one server in PostgreSQL: one connection, which is made anew when it is lost."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from inferno.errors import OptionError, StoreError
from inferno_postgres import sql

T = TypeVar("T")

_LOCK = 0x696E6672
"""What transactions take turns by: "infr"."""
_SCHEMA = "inferno"
"""The schema of all tables, so that a database may have others."""
_DEFAULTS = {
    "application_name": "inferno",
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",
}
"""Unless the address says otherwise. What does not answer is given up in seconds."""
# A server that is frozen within a transaction must not stop the others. All queries go by keys: of
# new tables PostgreSQL does not know that, and would read every item for a chain of ten responses.
_SETTINGS = (
    f"SET search_path = {_SCHEMA}; SET statement_timeout = '10s'; "
    "SET idle_in_transaction_session_timeout = '10s'; "
    "SET default_transaction_isolation = 'read committed'; "
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
)
_TRIES = 5
"""Of a transaction that others kept from being committed, or whose connection was lost before."""
_PAUSE = 1.0
"""Seconds without a try to connect, after one has failed: requests do not queue for it."""
_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)
_REMEDY = "Send the whole conversation with store: false, or see the database's server."


class PostgresTables:
    """`contracts.Tables` of a database."""

    shared = True

    def __init__(self, parameters: dict[str, Any], schemas: Sequence[str]) -> None:
        """Connect, and create what is missing. Raises OptionError."""
        self._parameters = {**_DEFAULTS, **parameters, "client_encoding": "utf8"}
        self._connection: psycopg.Connection[Any] | None = None
        self._away_until = 0.0
        self._away = ""
        self._is_closed = self._in_transaction = False
        try:
            self._prepare(schemas)
        except StoreError as error:
            self.close()
            raise OptionError(
                error.cause, "Start the database, or correct --store postgresql://..."
            ) from None
        except OptionError:
            self.close()
            raise

    @classmethod
    def open(cls, address: str | None, schemas: Sequence[str]) -> PostgresTables:
        """Open a database by a connection string of libpq."""
        try:
            parameters = conninfo_to_dict(address or "")
        except psycopg.Error:  # its text has the address, and so may have a password
            raise OptionError(
                "the address of --store is not a connection string",
                "Write it as postgresql://USER@HOST:5432/DATABASE; %XX for special characters.",
            ) from None
        return cls(parameters, schemas)

    def one(self, query: str, *values: Any) -> Any:
        return self._read(lambda cursor: cursor.execute(sql.query(query), values).fetchone())

    def all(self, query: str, *values: Any) -> list[Any]:
        return self._read(lambda cursor: cursor.execute(sql.query(query), values).fetchall())

    def run(self, query: str, *values: Any) -> int:
        return self._ask(lambda cursor: cursor.execute(sql.query(query), values).rowcount)

    def many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        self._ask(lambda cursor: cursor.executemany(sql.query(query), rows))

    def transaction(self, work: Callable[[], T], *, deletes: bool = False) -> T:
        """`deletes` changes nothing: room on the disk is the database's concern."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(_NotKeptError):
                return self._whole(work)
            time.sleep(random.uniform(0, 0.05))
        return self._whole(work)

    def now(self) -> float:
        return float(self.one("SELECT extract(epoch FROM clock_timestamp())::float8")[0])

    def free_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()

    # --- queries

    def _whole(self, work: Callable[[], T]) -> T:
        try:
            self._script(f"BEGIN; SELECT pg_advisory_xact_lock({_LOCK})")
            self._in_transaction = True
            result = work()
            status = self._commit()
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._in_transaction = False
        if status != "COMMIT":  # something failed in it, and was not raised
            raise StoreError("the store kept nothing of a transaction", _REMEDY)
        return result

    def _commit(self) -> str | None:
        connection = self._connected()
        try:
            return connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if connection.closed:  # perhaps it was kept
                raise StoreError(f"the store was lost: {self._text(error)}", _REMEDY) from error
            raise self._failed(error, connection) from error

    def _roll_back(self) -> None:
        if self._connection is not None and not self._connection.closed:
            try:
                self._connection.execute("ROLLBACK")
            except psycopg.Error:
                self._connection.close()

    def _read(self, ask: Callable[[psycopg.Cursor[Any]], T]) -> T:
        """Ask, and once more if the connection was lost: it may be an old one."""
        try:
            return self._ask(ask)
        except _NotKeptError:
            if self._in_transaction:
                raise
            return self._ask(ask)

    def _ask(self, ask: Callable[[psycopg.Cursor[Any]], T]) -> T:
        connection = self._connected()
        try:
            with connection.cursor(binary=True) as cursor:
                return ask(cursor)
        except psycopg.Error as error:
            raise self._failed(error, connection) from error

    def _script(self, statements: str) -> Any:
        """Run several statements, without values."""
        connection = self._connected()
        try:
            return connection.execute(statements)
        except psycopg.Error as error:
            raise self._failed(error, connection) from error

    def _failed(self, error: psycopg.Error, connection: psycopg.Connection[Any]) -> StoreError:
        if isinstance(error, errors.ReadOnlySqlTransaction):  # now a standby: look for the other
            connection.close()
        again = connection.closed or isinstance(error, _CONFLICTS)
        kind = _NotKeptError if again else StoreError
        return kind(f"the store cannot be used: {self._text(error)}", _REMEDY)

    # --- the connection

    def _connected(self) -> psycopg.Connection[Any]:
        """Return the connection; a new one if it was lost, but not within a transaction."""
        session = self._connection
        if self._is_closed:
            raise StoreError("the store is closed", _REMEDY)
        if session is not None and not session.closed:
            return session
        if self._in_transaction:
            raise _NotKeptError("the store's connection was lost", _REMEDY)
        if time.monotonic() < self._away_until:
            raise StoreError(self._away, _REMEDY)
        try:
            session = psycopg.connect(**self._parameters, autocommit=True)
            session.execute(_SETTINGS)
        except psycopg.Error as error:
            self._away_until = time.monotonic() + _PAUSE
            self._away = f"the store cannot be reached: {self._text(error)}"
            raise StoreError(self._away, _REMEDY) from None
        sql.adapt(session)
        self._connection = session
        return session

    def _text(self, error: psycopg.Error) -> str:
        """Return what an error says, without the password."""
        text = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
        password = self._parameters.get("password")
        return text.replace(str(password), "***") if password else text

    def _prepare(self, schemas: Sequence[str]) -> None:
        [encoding] = self._script("SHOW server_encoding").fetchone()
        if encoding != "UTF8":
            raise OptionError(
                f"the database of --store keeps texts in {encoding}",
                "Make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0.",
            )
        self.transaction(lambda: self._migrate(schemas))

    def _migrate(self, schemas: Sequence[str]) -> None:
        if self.one("SELECT 1 FROM pg_namespace WHERE nspname = ?", _SCHEMA) is None:
            self._script(f"CREATE SCHEMA {_SCHEMA}")
        if self.one("SELECT to_regclass(?)", f"{_SCHEMA}.version")[0] is None:
            self._script("CREATE TABLE version (number INTEGER NOT NULL)")
            self._script("INSERT INTO version VALUES (0)")
        [number] = self.one("SELECT number FROM version")
        if number > len(schemas):
            raise OptionError(
                "the database of --store is that of a later version of inferno",
                "Upgrade this server, or name another database.",
            )
        if number < len(schemas):
            self._script("SET LOCAL statement_timeout = 0")
            for each in schemas[number:]:
                self._script(sql.schema(each))
            self.run("UPDATE version SET number = ?", len(schemas))


class _NotKeptError(StoreError):
    """Nothing of a transaction can have been kept: it may be tried again."""
