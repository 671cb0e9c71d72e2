"""The store `postgresql` in a real server: its promises, and what happens when it is away."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from inferno.errors import OptionError, StoreError
from inferno.testing import RecordStoreTests
from inferno_postgres import sql
from inferno_postgres.tables import PostgresTables

if TYPE_CHECKING:
    from started_postgres import Postgres

pytest_plugins = ["started_postgres"]
SCHEMA = "CREATE TABLE things (id TEXT PRIMARY KEY, number INTEGER);"
INSERT = "INSERT INTO things VALUES (?, ?)"


class TestPostgres(RecordStoreTests):
    store = "postgresql"

    @pytest.fixture
    def address(self, postgres: Postgres, database: str) -> str:
        return postgres.address(database)


@pytest.fixture
def tables(postgres: Postgres, database: str) -> Iterator[PostgresTables]:
    opened = PostgresTables.open(postgres.address(database), (SCHEMA,))
    yield opened
    opened.close()


def add(tables: PostgresTables, id: str, number: int = 0) -> int:
    return tables.transaction(partial(tables.run, INSERT, id, number))


def ids(tables: PostgresTables) -> list[str]:
    return [id for (id,) in tables.all("SELECT id FROM things ORDER BY id")]


# --- SQL ------------------------------------------------------------------------------------------


def test_types_and_signs_are_translated() -> None:
    made = "CREATE TABLE t (id TEXT, n INTEGER, x REAL, body BLOB) WITHOUT ROWID;"
    assert sql.schema(made) == (
        'CREATE TABLE t (id TEXT COLLATE "C", n BIGINT, x DOUBLE PRECISION, body BYTEA) ;'
    )
    assert sql.query("SELECT 5 % 2 WHERE id = ?") == "SELECT 5 %% 2 WHERE id = %s"


def test_texts_are_in_the_order_of_their_bytes(tables: PostgresTables) -> None:
    for each in ("b", "a", "B", "é", "A"):
        add(tables, each)
    assert ids(tables) == ["A", "B", "a", "b", "é"]


def test_its_tables_are_in_a_schema_of_their_own(
    tables: PostgresTables, postgres: Postgres, database: str
) -> None:
    rows = postgres.execute(
        "SELECT schemaname FROM pg_tables WHERE tablename IN ('things', 'version')", database
    )
    assert rows == [("inferno",), ("inferno",)]


# --- a server that is away ------------------------------------------------------------------------


def test_a_lost_connection_is_made_anew(
    tables: PostgresTables, postgres: Postgres, database: str
) -> None:
    def cut() -> None:
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        )

    add(tables, "a")
    cut()
    assert ids(tables) == ["a"]
    cut()
    add(tables, "b")
    calls = []

    def work() -> None:
        calls.append(1)
        tables.run(INSERT, f"c{len(calls)}", 0)
        if len(calls) == 1:
            cut()
        tables.one("SELECT 1")

    tables.transaction(work)
    assert ids(tables) == ["a", "b", "c2"], "all of it was done again, and nothing twice"


def test_a_server_that_is_stopped_is_a_typed_error_and_comes_back(
    tables: PostgresTables, postgres: Postgres
) -> None:
    add(tables, "a")
    postgres.stop()
    try:
        began = time.monotonic()
        for _ in range(50):
            with pytest.raises(StoreError) as caught:
                ids(tables)
            with pytest.raises(StoreError):
                add(tables, "b")
        assert "cannot be reached" in caught.value.cause and caught.value.remedy
        assert time.monotonic() - began < 10, "requests do not queue for a server that is away"
    finally:
        postgres.start()
    time.sleep(1.1)
    assert ids(tables) == ["a"]
    add(tables, "b")
    assert ids(tables) == ["a", "b"]


def test_a_server_that_was_killed_comes_back(tables: PostgresTables, postgres: Postgres) -> None:
    add(tables, "a")
    postgres.stop(signal.SIGQUIT)
    postgres.start()
    add(tables, "b")
    assert ids(tables) == ["a", "b"]


def test_a_server_that_is_frozen_in_a_transaction_does_not_stop_the_others(
    tables: PostgresTables,
    postgres: Postgres,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "inferno_postgres.tables._SETTINGS",
        "SET search_path = inferno; SET idle_in_transaction_session_timeout = '300ms'",
    )
    frozen = PostgresTables.open(postgres.address(database), (SCHEMA,))

    def freeze() -> None:
        frozen.run(INSERT, "frozen", 0)
        time.sleep(1)
        add(tables, "other")
        frozen.run(INSERT, "thawed", 0)

    with pytest.raises(StoreError):
        frozen._whole(freeze)
    frozen.close()
    assert ids(tables) == ["other"]


def test_a_conflict_is_tried_again(tables: PostgresTables) -> None:
    """Nothing here conflicts: PostgreSQL is told to say so."""
    raising = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$"
    calls: list[int] = []

    def work(most: int) -> int:
        calls.append(1)
        tables.run(INSERT, f"a{len(calls)}", 0)
        if len(calls) < most:
            tables.run(raising)
        return len(calls)

    assert tables.transaction(lambda: work(3)) == 3
    assert ids(tables) == ["a3"]
    with pytest.raises(StoreError):
        tables.transaction(lambda: work(100))
    assert ids(tables) == ["a3"]


def test_a_failure_that_is_not_raised_is_not_taken_for_success(tables: PostgresTables) -> None:
    def work() -> None:
        tables.run(INSERT, "a", 0)
        with pytest.raises(StoreError):
            tables.run("SELECT nothing")

    with pytest.raises(StoreError, match="kept nothing"):
        tables.transaction(work)
    assert ids(tables) == []


# --- addresses ------------------------------------------------------------------------------------


def by_password(postgres: Postgres, database: str, more: str = "", options: str = "") -> str:
    """An address with the right password, or with `more` at its end."""
    password = postgres.password + more
    host = f"127.0.0.1:{postgres.port}"
    return f"postgres://guest:{quote(password, safe='')}@{host}/{database}{options}"


def test_a_password_works_and_is_never_shown(
    postgres: Postgres, database: str, capfd: pytest.CaptureFixture[str]
) -> None:
    password = postgres.password
    postgres.execute(f"GRANT CREATE ON DATABASE {database} TO guest")
    PostgresTables.open(by_password(postgres, database), (SCHEMA,)).close()
    refused = [
        by_password(postgres, database, "wrong"),
        by_password(postgres, "nothing_there"),
        by_password(postgres, database, "", "?sslmode=require"),
        by_password(postgres, database, "", "?port=1"),
        by_password(postgres, database, "", "?nonsense=1"),
        f"postgresql://guest:{password}@host:port/x",
        f"postgresql://guest:{password}",
    ]
    for each in refused:
        with pytest.raises(OptionError) as caught:
            PostgresTables.open(each, (SCHEMA,))
        seen: BaseException | None = caught.value
        while seen is not None:
            shown = f"{seen} {seen!r}"
            assert not any(part in shown for part in (password, quote(password, safe=""))), each
            seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        assert caught.value.remedy
    assert password not in "".join(capfd.readouterr())


def test_a_user_without_rights_is_told(postgres: Postgres, database: str) -> None:
    with pytest.raises(OptionError, match="permission denied"):
        PostgresTables.open(by_password(postgres, database), (SCHEMA,))


def test_other_encodings_are_refused(postgres: Postgres) -> None:
    postgres.execute(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    with pytest.raises(OptionError, match="LATIN1"):
        PostgresTables.open(postgres.address("latin"), (SCHEMA,))


def test_an_old_servers_tables_stay_when_a_new_version_fails(
    postgres: Postgres, database: str
) -> None:
    address = postgres.address(database)
    PostgresTables.open(address, (SCHEMA,)).close()
    with pytest.raises(OptionError):
        PostgresTables.open(address, (SCHEMA, "CREATE TABLE more (id TEXT); nonsense;"))
    again = PostgresTables.open(address, (SCHEMA,))
    assert again.one("SELECT to_regclass(?)", "inferno.more") == (None,)
    again.close()
