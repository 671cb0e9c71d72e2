"""Two servers with one store: what either has stored, and which of them works at what."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.server.conftest import wait_until
from tests.server.server_fakes import FakeLLM
from tests.server.shared_sqlite import SharedSqlite
from tests.server.test_accepted import queued
from tests.server.test_batches import create, line
from tests.server.test_store import stored, texts

from inferno.errors import QueueFullError, RequestError, StoreError
from inferno.server import ServerOptions, create_app
from inferno.server.responses.database import Database
from inferno.server.responses.store import Store
from inferno.server.responses.stored import SCHEMAS
from inferno.server.storage.files import LeaseLostError
from inferno.server.storage.objects import ENDED
from inferno.server.storage.quotas import Quota
from inferno.testing import RecordStoreTests

MIB = 2**20
RESPONSES = "/v1/responses"
BACKGROUND = {"input": "hi", "background": True}
LEASE = 0.3


class TestToy(RecordStoreTests):
    store = "sqlite"

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return str(tmp_path / "shared.sqlite")

    def open(self, address: str, schemas: tuple[str, ...]) -> SharedSqlite:
        return SharedSqlite(Path(address), schemas)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Database]]:
    """Opens the store as one more server."""
    opened: list[Database] = []

    def make(max_bytes: int = MIB, lease: float = LEASE) -> Database:
        tables = SharedSqlite(tmp_path / "shared.sqlite", SCHEMAS)
        opened.append(Database(tables, None, max_bytes, lease))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def batch(id: str) -> dict[str, Any]:
    return {"id": id, "status": "validating", "cancelled_at": None, "cancelling_at": None}


# --- what is stored -------------------------------------------------------------------------------


def test_what_one_server_stores_the_other_has(server: Any) -> None:
    a, b = server(), server()
    a.save("me", stored("resp_1", "one"))
    b.save("me", stored("resp_2", "two", previous="resp_1"))
    a.save("me", stored("resp_3", "three", previous="resp_2"))
    assert texts(b.chain("me", "resp_3")) == ["one", "one!", "two", "two!", "three", "three!"]
    a.create("me", {"id": "conv"}, [])
    for each, name in ((a, "x"), (b, "y"), (a, "z")):
        each.add("me", "conv", stored("_", name).inputs)
    assert texts(b.all_items("me", "conv")) == ["x", "y", "z"]
    a.files.create("file", "me", {"id": "file-1"}, [b"x" * 1000, b"y"])
    assert [b.files.part("file-1", i) for i in range(3)] == [b"x" * 1000, b"y", None]
    assert b.delete("response", "me", "resp_1") and a.response("me", "resp_1") is None


def test_the_bytes_of_all_servers_count_together(server: Any) -> None:
    a, b = server(max_bytes=20_000), server(max_bytes=20_000)
    for i in range(40):
        (a, b)[i % 2].save("me", stored(f"resp_{i}", "x" * 500))
        assert a.room.counted() <= 20_000
    assert b.room.counted() == b.room.used_bytes > 15_000
    assert a.response("me", "resp_0") is None and a.response("me", "resp_39") is not None
    a.delete("response", "me", "resp_39")
    b.beat()
    assert b.used_bytes == b.room.counted() == a.used_bytes


def test_a_keys_quota_is_for_all_servers(server: Any) -> None:
    a, b = server(), server()
    for each in (a, b):
        each.files.quota_of = lambda owner: Quota(bytes=5000, files=3)
    for i in range(3):
        (a, b)[i % 2].files.create("file", "me", {"id": f"file-{i}"}, [b"x" * 1000])
    for each in (a, b):
        with pytest.raises(RequestError, match="3 objects"):
            each.files.create("file", "me", {"id": "file-9"}, [b"x"])
        with pytest.raises(RequestError, match="5000 bytes"):
            each.save("me", stored("resp", "x" * 2000))
    a.files.create_batch("me", batch("batch_a"), 1)
    with pytest.raises(QueueFullError):
        b.files.create_batch("me", batch("batch_b"), 1)


# --- leases ---------------------------------------------------------------------------------------


def test_a_response_fails_once_its_server_is_silent_and_stays_so(server: Any) -> None:
    a, b = server(), server()
    a.accept("me", queued("resp_a"))
    b.beat()
    assert b.response("me", "resp_a").body["status"] == "queued", "its server lives"
    time.sleep(LEASE * 0.7)
    assert a.beat().kept
    time.sleep(LEASE * 0.7)
    b.beat()
    assert b.response("me", "resp_a").body["status"] == "queued", "it was heard again"
    time.sleep(LEASE)
    b.beat()
    record = b.response("me", "resp_a")
    assert record.body["status"] == "failed" and "stopped" in record.body["error"]["message"]
    a.save("me", stored("resp_a", is_accepted=True))
    a.fail("me", "resp_a", {"message": "late"})
    assert a.response("me", "resp_a") == record, "what a frozen server stores is refused"
    assert not a.beat().kept and a.beat().kept
    assert a.used_bytes == a.room.counted()


def test_a_server_that_ends_hands_over_at_once(server: Any) -> None:
    a, b = server(lease=1000), server(lease=1000)
    a.files.create_batch("me", batch("batch_a"), 9)
    a.accept("me", queued("resp_a"))
    assert [each.body["id"] for each in a.files.claim([], [])] == ["batch_a"]
    assert b.files.claim([], []) == []
    a.close()
    assert [each.body["id"] for each in b.files.claim([], [])] == ["batch_a"]
    b.beat()
    assert b.response("me", "resp_a").body["status"] == "failed"


def test_an_owners_batches_run_one_after_another_on_all_servers(server: Any) -> None:
    a, b = server(), server()
    for id, owner in (("batch_1", "x"), ("batch_2", "x"), ("batch_3", "y")):
        a.files.create_batch(owner, batch(id), 9)
    assert [each.body["id"] for each in a.files.claim(["y"], [])] == ["batch_1"]
    assert [each.body["id"] for each in b.files.claim([], [])] == ["batch_3"]
    ended = batch("batch_1") | {"status": "completed"}
    with pytest.raises(LeaseLostError):
        b.files.end("x", ended, [])
    a.files.end("x", ended, [])
    assert [each.body["id"] for each in b.files.claim(["y"], [])] == ["batch_2"]


def test_a_batch_of_a_silent_server_is_anothers_and_no_longer_its_own(server: Any) -> None:
    a, b = server(), server()
    a.files.create_batch("me", batch("batch_a"), 9)
    a.files.create("file", "me", {"id": "file-out"})
    assert a.files.claim([], [])
    a.files.append("file-out", b"1\n", batch("batch_a"))
    time.sleep(LEASE * 1.2)
    assert b.files.claim([], [])
    with pytest.raises(LeaseLostError):
        a.files.append("file-out", b"2\n", batch("batch_a"))
    b.files.append("file-out", b"2\n", batch("batch_a"))
    assert a.files.parts("file-out") == [b"1\n", b"2\n"]


def test_what_is_cancelled_elsewhere_is_told_to_its_server(server: Any) -> None:
    a, b = server(), server()
    for id in ("resp_a", "resp_b"):
        a.accept("me", queued(id))
    a.files.create_batch("me", batch("batch_a"), 9)
    a.files.claim([], [])
    assert not b.cancel("you", "resp_a") and b.cancel("me", "resp_a")
    assert b.delete("response", "me", "resp_b")
    assert b.files.cancel("me", "batch_a")["status"] == "cancelling"
    assert sorted(a.beat().cancelled) == ["batch_a", "resp_a", "resp_b"]
    a.save("me", stored("resp_b", is_accepted=True))
    assert a.response("me", "resp_b") is None, "deleted: it is not stored again"


def test_what_was_to_be_cancelled_is_when_its_server_is_gone(server: Any) -> None:
    a, b = server(), server()
    a.accept("me", queued("resp_a"))
    for owner in ("x", "y"):
        a.files.create_batch(owner, batch(f"batch_{owner}"), 9)
    a.files.claim([], [])
    b.cancel("me", "resp_a")
    for owner in ("x", "y"):
        b.files.cancel(owner, f"batch_{owner}")
    a.files.give_up("batch_x")
    assert b.files.find("batch", "x", "batch_x")["status"] == "cancelled"
    time.sleep(LEASE * 1.2)
    assert b.files.claim([], []) == []
    b.beat()
    assert b.files.find("batch", "y", "batch_y")["status"] == "cancelled"
    assert b.response("me", "resp_a").body["status"] == "cancelled"


# --- servers --------------------------------------------------------------------------------------


class Server:
    """A server behind HTTP, with a fake model and its own connection to the store."""

    def __init__(self, path: Path, llm: FakeLLM, lease: float) -> None:
        self.llm = llm
        self.store = Store(path, lease_seconds=lease)
        app = create_app(llm, ServerOptions(store=self.store))  # type: ignore[arg-type]
        self.http = TestClient(app, raise_server_exceptions=False)
        self.http.__enter__()
        self._runs = True

    @property
    def tables(self) -> SharedSqlite:
        tables = self.store._database.tables
        assert isinstance(tables, SharedSqlite)
        return tables

    def stop(self) -> None:
        if self._runs:
            self._runs = False
            self.http.__exit__(None, None, None)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.setattr(
        "inferno.server.responses.store.open_tables",
        lambda address, schemas, *_: SharedSqlite(address, schemas),
    )
    monkeypatch.setattr("inferno.server.responses.heartbeat.SECONDS", 0.05)
    monkeypatch.setattr("inferno.server.batches.service.LOOK", 0.05)
    servers: list[Server] = []

    def make(llm: FakeLLM | None = None, lease: float = 30) -> Server:
        servers.append(Server(tmp_path / "shared.sqlite", llm or FakeLLM(), lease))
        return servers[-1]

    yield make
    for each in servers:
        each.stop()


def status(server: Server, id: str) -> str:
    return str(server.http.get(f"{RESPONSES}/{id}").json().get("status"))


def test_a_response_is_read_continued_cancelled_and_deleted_at_another_server(start: Any) -> None:
    a, b = start(FakeLLM(endless=True, delay=0.01)), start()
    ids = [a.http.post(RESPONSES, json=BACKGROUND).json()["id"] for _ in range(2)]
    assert [status(b, id) for id in ids] == ["queued", "queued"]
    assert b.http.post(f"{RESPONSES}/{ids[0]}/cancel").status_code == 200
    wait_until(lambda: status(b, ids[0]) == status(a, ids[0]) == "cancelled")
    assert b.http.post(f"{RESPONSES}/{ids[0]}/cancel").status_code == 200, "as on its own server"
    assert b.http.delete(f"{RESPONSES}/{ids[1]}").status_code == 200
    wait_until(lambda: not a.llm.live)
    time.sleep(0.1)
    assert a.http.get(f"{RESPONSES}/{ids[1]}").status_code == 404
    body = {"input": "and", "previous_response_id": ids[0]}
    assert b.http.post(RESPONSES, json=body).json()["previous_response_id"] == ids[0]
    streamed = b.http.get(f"{RESPONSES}/{ids[0]}", params={"stream": True})
    assert streamed.status_code == 400 and streamed.json()["error"]["param"] == "stream"


def test_a_batch_is_run_by_one_server_and_read_at_another(start: Any) -> None:
    a, b = start(), start()
    made = create(a.http, *(line(str(i)) for i in range(20)))

    def found() -> Any:
        return b.http.get(f"/v1/batches/{made['id']}").json()

    wait_until(lambda: found()["status"] in ENDED)
    assert found()["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    output = b.http.get(f"/v1/files/{found()['output_file_id']}/content").text
    assert sorted(json.loads(each)["custom_id"] for each in output.splitlines()) == sorted(
        map(str, range(20))
    )
    assert not (a.llm.made and b.llm.made), "one of them ran it"


def test_a_batch_goes_on_where_a_server_that_ended_left_it(start: Any) -> None:
    a = start(FakeLLM(delay=0.1))
    made = create(a.http, *(line(str(i)) for i in range(200)))

    def found(server: Server) -> Any:
        return server.http.get(f"/v1/batches/{made['id']}").json()

    wait_until(lambda: found(a)["request_counts"]["completed"] > 5)
    b = start()
    time.sleep(0.2)
    assert not b.llm.made, "it is run by the other"
    a.stop()
    wait_until(lambda: found(b)["status"] == "completed")
    output = b.http.get(f"/v1/files/{found(b)['output_file_id']}/content").text
    ids = [json.loads(each)["custom_id"] for each in output.splitlines()]
    assert len(ids) == len(set(ids)) == 200 and b.llm.made
    assert b.llm.made < 200 * len("Hello there"), "what was answered is not asked again"


def test_a_batch_is_cancelled_at_another_server(start: Any) -> None:
    a, b = start(FakeLLM(endless=True, delay=0.01)), start(FakeLLM(endless=True, delay=0.01))
    made = create(a.http, line("x"))
    path = f"/v1/batches/{made['id']}"
    wait_until(lambda: bool(a.llm.live or b.llm.live))
    other = b if a.llm.live else a
    assert other.http.post(f"{path}/cancel").json()["status"] in ("cancelling", "cancelled")
    wait_until(lambda: other.http.get(path).json()["status"] == "cancelled")
    wait_until(lambda: not a.llm.live and not b.llm.live)


def test_a_server_stops_what_may_be_anothers(start: Any) -> None:
    """It cannot reach the store for as long as its leases last."""
    a, b = start(FakeLLM(endless=True, delay=0.01), lease=0.5), start(lease=0.5)
    made = a.http.post(RESPONSES, json=BACKGROUND).json()
    create(a.http, line("x"))
    a.tables.is_away = True
    wait_until(lambda: not a.llm.live, 10)
    wait_until(lambda: status(b, made["id"]) == "failed", 10)
    a.tables.is_away = False
    assert a.store.errors > 0
    wait_until(lambda: status(a, made["id"]) == "failed", 10)


def test_a_store_that_is_away_takes_nothing_else_with_it(start: Any) -> None:
    a = start(FakeLLM(endless=True, delay=0.01))
    made = create(a.http, line("x"))
    wait_until(lambda: bool(a.llm.live))
    a.tables.is_away = True
    refused = a.http.post(RESPONSES, json=BACKGROUND)
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "store_unavailable"
    assert a.http.get("/health").status_code == 200
    assert a.http.get("/v1/models").status_code == 200
    assert "inferno_store_errors_total" in a.http.get("/metrics").text
    a.tables.is_away = False
    assert a.http.post(RESPONSES, json=BACKGROUND).status_code == 200
    assert a.http.get(f"/v1/batches/{made['id']}").json()["status"] == "in_progress"


def test_a_batch_waits_for_a_store_that_is_away(start: Any) -> None:
    a = start(FakeLLM(delay=0.01))
    made = create(a.http, *(line(str(i)) for i in range(60)))

    def found() -> Any:
        return a.http.get(f"/v1/batches/{made['id']}").json()

    wait_until(lambda: found()["request_counts"]["completed"] > 3)
    a.tables.is_away = True
    time.sleep(0.3)
    a.tables.is_away = False
    wait_until(lambda: found()["status"] in ENDED)
    assert found()["request_counts"] == {"total": 60, "completed": 60, "failed": 0}


def test_a_store_that_fails_does_not_end_the_heartbeat(start: Any) -> None:
    a = start(lease=30)
    a.tables.is_away = True
    wait_until(lambda: a.store.errors > 3)
    a.tables.is_away = False
    before = asyncio.run(_until(a.store))
    wait_until(lambda: asyncio.run(_until(a.store)) > before)


async def _until(store: Store) -> float:
    try:
        row = await store.run(lambda db: db.tables.one("SELECT MAX(until) FROM servers"))
    except StoreError:
        return 0.0
    return float(row[0] or 0)
