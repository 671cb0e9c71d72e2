"""Tests of every store of records: what its tables promise, and what a server does with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import RecordStore, Tables
from inferno.errors import OptionError, StoreError
from inferno.hookspecs import ENDPOINTS
from inferno.server.storage.opening import open_tables
from inferno.testing.served_records import ServedRecordTests

SCHEMA = """
CREATE TABLE things (id TEXT PRIMARY KEY, number INTEGER, size REAL, body BLOB);
CREATE TABLE parts (
  thing TEXT NOT NULL REFERENCES things(id) ON DELETE CASCADE, position INTEGER NOT NULL,
  body BLOB NOT NULL, PRIMARY KEY (thing, position)
) WITHOUT ROWID;
CREATE INDEX things_by_number ON things(number) WHERE body IS NULL;
"""
MORE = "ALTER TABLE things ADD COLUMN more TEXT; CREATE TABLE others (id TEXT PRIMARY KEY);"
INSERT = "INSERT INTO things VALUES (?, ?, ?, ?)"
TEXTS = (
    "",
    "a",
    "a\x00",
    "\x00",
    "\x01",
    "\x01\x02",
    "\x00\x01\x00",
    "\\x00",
    "é\U0001f600",
    "?%s%",
)
"""Each is another text than all others."""


class RecordStoreTests(ServedRecordTests):
    """Set `store` to its registered name, and implement the fixture `address`: that of a store that
    is empty at the beginning of each test, and deleted after it."""

    store: ClassVar[str]

    @pytest.fixture
    def address(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def opened(self, address: str) -> Iterator[Callable[..., Tables]]:
        """Opens the store, as another server would at each call."""
        all_tables: list[Tables] = []

        def make(*schemas: str) -> Tables:
            all_tables.append(self.open(address, schemas or (SCHEMA,)))
            return all_tables[-1]

        yield make
        for each in all_tables:
            each.close()

    @pytest.fixture
    def tables(self, opened: Callable[..., Tables]) -> Tables:
        return opened()

    def open(self, address: str, schemas: tuple[str, ...]) -> Tables:
        return open_tables(address, schemas)

    # --- what is stored

    def test_the_catalog_has_it_by_the_beginning_of_its_addresses(self, address: str) -> None:
        catalog: Catalog = load_catalog(groups=(ENDPOINTS,))
        item = catalog.named(RecordStore, self.store).item
        scheme, mark, _ = address.partition("://")
        assert not mark or scheme in (item.name, *item.spellings)

    def test_values_come_back_as_they_were(self, tables: Tables) -> None:
        rows = [
            ("a", 2**63 - 1, 1e-300, bytes(range(256))),
            ("b", -(2**63), 0.1 + 0.2, b""),
            ("c", 0, 1.7976931348623157e308, b"\x00" * 3),
            ("d", None, None, None),
        ]
        tables.transaction(lambda: tables.many(INSERT, rows))
        stored = tables.all("SELECT id, number, size, body FROM things ORDER BY id")
        assert stored == rows
        assert [tuple(map(type, row)) for row in stored] == [tuple(map(type, row)) for row in rows]

    def test_large_values_come_back(self, tables: Tables) -> None:
        text, body = "\x00é" * 2**19, bytes(range(256)) * 2**15
        tables.transaction(lambda: tables.run(INSERT, text[:1000], 1, 1.0, body))
        assert tables.one("SELECT id, LENGTH(body) FROM things") == (text[:1000], len(body))
        assert tables.one("SELECT body FROM things") == (body,)

    def test_texts_may_have_any_character_and_are_equal_only_to_themselves(
        self, tables: Tables
    ) -> None:
        rows = [(text, i, None, None) for i, text in enumerate(TEXTS)]
        tables.transaction(lambda: tables.many(INSERT, rows))
        for i, text in enumerate(TEXTS):
            assert tables.all("SELECT id, number FROM things WHERE id = ?", text) == [(text, i)]

    def test_nothing_is_none(self, tables: Tables) -> None:
        assert tables.one("SELECT id FROM things") is None
        assert tables.all("SELECT id FROM things") == []
        assert tables.one("SELECT COALESCE(SUM(number), 0), COUNT(*) FROM things") == (0, 0)
        tables.transaction(lambda: tables.many(INSERT, []))

    def test_changes_are_counted(self, tables: Tables) -> None:
        rows = [(str(i), i, None, None) for i in range(5)]
        tables.transaction(lambda: tables.many(INSERT, rows))
        change = "UPDATE things SET number = number + ? WHERE number >= ?"
        assert tables.transaction(lambda: tables.run(change, 1, 3)) == 2
        assert tables.transaction(lambda: tables.run(change, 1, 9)) == 0
        assert tables.transaction(lambda: tables.run("DELETE FROM things WHERE number < ?", 2)) == 2

    def test_sums_are_numbers_of_any_size(self, tables: Tables) -> None:
        rows = [(str(i), 2**61, None, None) for i in range(3)]
        tables.transaction(lambda: tables.many(INSERT, rows))
        query = "SELECT SUM(number), SUM(CASE WHEN id = ? THEN number ELSE 0 END) FROM things"
        sums = tables.one(query, "1")
        assert (int(sums[0]), int(sums[1])) == (3 * 2**61, 2**61)

    def test_pages_chains_and_pairs_can_be_asked_for(self, tables: Tables) -> None:
        rows = [(str(i), i // 2, None, str(i - 1).encode()) for i in range(10)]
        tables.transaction(lambda: tables.many(INSERT, rows))
        page = "SELECT id FROM things WHERE (number, id) > (?, ?) ORDER BY number, id LIMIT ?"
        assert tables.all(page, 1, "2", 3) == [("3",), ("4",), ("5",)]
        chain = (
            "WITH RECURSIVE chain(number, depth) AS ("
            "SELECT number, 0 FROM things WHERE id = ? UNION ALL "
            "SELECT number - 1, depth + 1 FROM chain WHERE number > ?) "
            "SELECT number FROM chain ORDER BY depth"
        )
        assert tables.all(chain, "9", 0) == [(4,), (3,), (2,), (1,), (0,)]
        upsert = f"{INSERT} ON CONFLICT (id) DO UPDATE SET number = excluded.number"
        tables.transaction(lambda: tables.run(upsert, "3", 77, None, None))
        assert tables.one("SELECT number FROM things WHERE id = ?", "3") == (77,)
        add = "INSERT INTO parts SELECT ?, COALESCE(MAX(position), -1) + 1, ? FROM parts "
        for body in (b"x", b"y"):
            more = partial(tables.run, f"{add} WHERE thing = ?", "3", body, "3")
            tables.transaction(more)
        assert tables.all("SELECT position, body FROM parts ORDER BY position") == [
            (0, b"x"),
            (1, b"y"),
        ]

    def test_parts_go_with_what_they_are_of(self, tables: Tables) -> None:
        def work() -> None:
            tables.run(INSERT, "a", 1, None, None)
            tables.many("INSERT INTO parts VALUES (?, ?, ?)", [("a", i, b"x") for i in range(3)])

        tables.transaction(work)
        delete = "DELETE FROM things WHERE id = ?"
        assert tables.transaction(lambda: tables.run(delete, "a"), deletes=True) == 1
        assert tables.all("SELECT * FROM parts") == []

    # --- transactions

    def test_a_transaction_that_fails_changes_nothing(self, tables: Tables) -> None:
        def work() -> None:
            tables.run(INSERT, "a", 1, None, None)
            assert tables.one("SELECT COUNT(*) FROM things") == (1,)
            raise KeyError

        with pytest.raises(KeyError):
            tables.transaction(work)
        assert tables.all("SELECT * FROM things") == []
        assert tables.transaction(lambda: tables.run(INSERT, "b", 1, None, None)) == 1
        assert tables.all("SELECT id FROM things") == [("b",)]

    @pytest.mark.parametrize(
        "query", [INSERT, "SELECT", "SELECT nothing FROM things WHERE id IN (?, ?, ?, ?)"]
    )
    def test_what_cannot_be_done_is_a_typed_error_and_harms_nothing_else(
        self, tables: Tables, query: str
    ) -> None:
        tables.transaction(partial(tables.run, INSERT, "a", 1, None, None))

        def work() -> None:
            tables.run(INSERT, "b", 2, None, None)
            tables.run(query, "a", 1, None, None)

        with pytest.raises(StoreError) as caught:
            tables.transaction(work)
        assert caught.value.cause and caught.value.remedy
        assert tables.all("SELECT id FROM things") == [("a",)]
        with pytest.raises(StoreError):
            tables.all("SELECT nothing FROM things")
        assert tables.one("SELECT COUNT(*) FROM things") == (1,)

    def test_a_closed_store_is_a_typed_error(self, opened: Callable[..., Tables]) -> None:
        tables = opened()
        tables.close()
        with pytest.raises(StoreError):
            tables.one("SELECT 1")
        with pytest.raises(StoreError):
            tables.transaction(lambda: tables.run(INSERT, "a", 1, None, None))

    # --- versions

    def test_what_is_stored_is_there_for_the_next_server(
        self, opened: Callable[..., Tables]
    ) -> None:
        first = opened()
        first.transaction(lambda: first.run(INSERT, "a", 1, None, b"x"))
        first.close()
        assert opened().all("SELECT id, number, body FROM things") == [("a", 1, b"x")]

    def test_a_later_version_adds_what_is_missing_once(self, opened: Callable[..., Tables]) -> None:
        first = opened(SCHEMA)
        first.transaction(lambda: first.run(INSERT, "a", 1, None, None))
        first.close()
        for _ in range(2):
            tables = opened(SCHEMA, MORE)
            assert tables.all("SELECT id, more FROM things") == [("a", None)]
            tables.close()

    def test_a_store_of_a_later_version_is_refused(self, opened: Callable[..., Tables]) -> None:
        opened(SCHEMA, MORE).close()
        with pytest.raises(OptionError) as caught:
            opened(SCHEMA)
        assert "version" in caught.value.cause and caught.value.remedy

    # --- servers

    def test_its_clock_goes_on(self, tables: Tables) -> None:
        before = tables.now()
        assert abs(before - time.time()) < 3600
        time.sleep(0.02)
        assert before < tables.now() < before + 60

    def test_free_bytes_are_known_or_not(self, tables: Tables) -> None:
        free = tables.free_bytes()
        assert free is None or (isinstance(free, int) and free >= 0)

    def test_a_second_server_shares_it_or_is_refused(self, opened: Callable[..., Tables]) -> None:
        first = opened()
        first.transaction(lambda: first.run(INSERT, "a", 1, None, None))
        if not first.shared:
            with pytest.raises(OptionError) as caught:
                opened()
            assert caught.value.remedy
            return
        second = opened()
        assert second.shared
        assert second.all("SELECT id FROM things") == [("a",)]
        first.transaction(lambda: first.run("DELETE FROM things"), deletes=True)
        assert second.all("SELECT id FROM things") == []

    def test_what_is_not_committed_is_not_seen(self, opened: Callable[..., Tables]) -> None:
        first = self._shared(opened)
        second = opened()

        def work() -> None:
            first.run(INSERT, "a", 1, None, None)
            assert second.all("SELECT id FROM things") == []

        first.transaction(work)
        assert second.all("SELECT id FROM things") == [("a",)]

    def test_transactions_of_all_servers_run_one_after_another(
        self, opened: Callable[..., Tables]
    ) -> None:
        """Each adds to a number that it has read: none is lost."""
        servers = [self._shared(opened), opened(), opened()]
        servers[0].transaction(lambda: servers[0].run(INSERT, "a", 0, None, None))
        failures: list[BaseException] = []

        def add(tables: Tables) -> None:
            [number] = tables.one("SELECT number FROM things WHERE id = 'a'")
            time.sleep(0.001)
            tables.run("UPDATE things SET number = ? WHERE id = 'a'", number + 1)

        def go_on(tables: Tables) -> None:
            try:
                for _ in range(20):
                    tables.transaction(lambda: add(tables))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=go_on, args=(tables,)) for tables in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert servers[1].one("SELECT number FROM things") == (60,)

    def test_servers_that_start_together_make_the_tables_once(
        self, opened: Callable[..., Tables], address: str
    ) -> None:
        self._shared(opened).close()  # skips the others
        outcomes: list[Any] = []

        def start() -> None:
            try:
                tables = self.open(address, (SCHEMA, MORE))
                outcomes.append(tables.all("SELECT more FROM things"))
                tables.close()
            except BaseException as error:
                outcomes.append(error)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert outcomes == [[]] * 4

    def _shared(self, opened: Callable[..., Tables]) -> Tables:
        tables = opened()
        if not tables.shared:
            pytest.skip("one server has it to itself")
        return tables
