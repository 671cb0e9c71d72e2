"""The store `sqlite` holds what stores promise; one that breaks a promise fails the kit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from inferno.builtin.sqlite import SqliteTables
from inferno.contracts import Tables
from inferno.errors import OptionError
from inferno.server.storage.opening import open_tables
from inferno.testing import RecordStoreTests

T = TypeVar("T")


class TestSqlite(RecordStoreTests):
    store = "sqlite"

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return str(tmp_path / "store.sqlite")


# --- toys that break a promise --------------------------------------------------------------------


class CutsTexts(SqliteTables):
    """Ends texts at the first NUL, as C does."""

    def run(self, query: str, *values: Any) -> int:
        return super().run(query, *map(_cut, values))

    def many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        super().many(query, [tuple(map(_cut, row)) for row in rows])

    def one(self, query: str, *values: Any) -> Any:
        return super().one(query, *map(_cut, values))

    def all(self, query: str, *values: Any) -> list[Any]:
        return super().all(query, *map(_cut, values))


def _cut(value: Any) -> Any:
    return value.split("\x00")[0] if isinstance(value, str) else value


class CommitsAlways(SqliteTables):
    """Keeps what was done before a failure."""

    def transaction(self, work: Callable[[], T], *, deletes: bool = False) -> T:
        try:
            return work()
        finally:
            self.raw.commit()


class NeverCommits(SqliteTables):
    def transaction(self, work: Callable[[], T], *, deletes: bool = False) -> T:
        return work()


class RaisesItsOwn(SqliteTables):
    """Lets the errors of its library through."""

    def one(self, query: str, *values: Any) -> Any:
        return self.raw.execute(query, values).fetchone()

    def all(self, query: str, *values: Any) -> list[Any]:
        return self.raw.execute(query, values).fetchall()


class RoundsNumbers(SqliteTables):
    """Has numbers of 32 bits."""

    def many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        super().many(query, [tuple(map(_rounded, row)) for row in rows])


def _rounded(value: Any) -> Any:
    return value & 0x7FFFFFFF if isinstance(value, int) else value


class SharesAlone(SqliteTables):
    """Says that it is shared, and gives each server a database of its own."""

    shared = True

    @classmethod
    def open(cls, address: str | None, schemas: Sequence[str]) -> SqliteTables:
        return cls(None, schemas)


class StandsStill(SqliteTables):
    def now(self) -> float:
        return 0.0


def failed_by(kind: type[SqliteTables], folder: Path) -> set[str]:
    """Run the kit's tests of a store, and return the names of those that fail."""

    class Tests(RecordStoreTests):
        store = "sqlite"

        def open(self, address: str, schemas: tuple[str, ...]) -> Tables:
            return kind.open(address, schemas)

    names = set[str]()
    tests = Tests()
    for name, test in inspect.getmembers(tests, inspect.ismethod):
        wanted = set(inspect.signature(test).parameters)
        if not name.startswith("test_") or not wanted <= {"tables", "opened", "address"}:
            continue
        address, opened = str(folder / f"{name}.sqlite"), list[Tables]()

        def make(*schemas: str, address: str = address, opened: list[Tables] = opened) -> Tables:
            opened.append(tests.open(address, schemas or (SCHEMA,)))
            return opened[-1]

        given: dict[str, Callable[[], Any]] = {
            "tables": make,
            "opened": lambda make=make: make,  # type: ignore[misc]
            "address": lambda address=address: address,  # type: ignore[misc]
        }
        try:
            test(**{each: given[each]() for each in wanted})
        except pytest.skip.Exception:
            pass
        except (Exception, pytest.fail.Exception):
            names.add(name.removeprefix("test_"))
        finally:
            for each in opened:
                each.close()
    return names


SCHEMA = inspect.getmodule(RecordStoreTests).SCHEMA  # type: ignore[union-attr]
TOYS: dict[type[SqliteTables], str] = {
    CutsTexts: "texts_may_have_any_character_and_are_equal_only_to_themselves",
    CommitsAlways: "a_transaction_that_fails_changes_nothing",
    NeverCommits: "what_is_stored_is_there_for_the_next_server",
    RaisesItsOwn: "a_closed_store_is_a_typed_error",
    RoundsNumbers: "values_come_back_as_they_were",
    SharesAlone: "a_second_server_shares_it_or_is_refused",
    StandsStill: "its_clock_goes_on",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferno.builtin.sqlite.PATIENCE", 0.1)


@pytest.mark.parametrize("kind", TOYS, ids=lambda kind: kind.__name__)
def test_a_store_that_breaks_a_promise_fails_the_kit(
    kind: type[SqliteTables], tmp_path: Path
) -> None:
    assert TOYS[kind] in failed_by(kind, tmp_path)


def test_a_store_that_keeps_them_does_not(tmp_path: Path) -> None:
    assert failed_by(SqliteTables, tmp_path) == set()


# --- addresses ------------------------------------------------------------------------------------


def test_a_beginning_that_nobody_knows_is_a_typed_error() -> None:
    with pytest.raises(OptionError, match="no store 'oracle'") as caught:
        open_tables("oracle://user:secret@host/db", ())
    assert "sqlite" in caught.value.remedy and "secret" not in str(caught.value)
