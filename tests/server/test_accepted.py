"""A response in the background that was accepted is never lost: not when the server is killed, and
not when its disk is full."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import define
from litestar.testing import TestClient
from tests.server.conftest import wait_until
from tests.server.server_fakes import FakeLLM
from tests.server.test_store import MIB, database_of, stored

from inferno.builtin.reserve import SIZE, Reserve
from inferno.builtin.sqlite import SqliteTables
from inferno.errors import RequestError, StoreError
from inferno.server import ServerOptions, create_app
from inferno.server.responses.database import Database
from inferno.server.responses.store import Store
from inferno.server.responses.stored import Stored

RESPONSES = "/v1/responses"
BACKGROUND = {"input": "hi", "background": True}
ENDED = {"completed", "failed", "cancelled", "incomplete"}


def queued(id: str) -> Stored:
    body = {"id": id, "status": "queued", "output": [], "background": True}
    return Stored(body=body, inputs=stored(id).inputs)


def app_of(llm: FakeLLM, store: Store) -> Any:
    return create_app(llm, ServerOptions(store=store))  # type: ignore[arg-type]


def full(*_: Any, **__: Any) -> Any:
    raise StoreError("the store cannot be used: database or disk is full", "Make room.")


# --- crashes --------------------------------------------------------------------------------------


def test_what_was_accepted_is_failed_once_another_server_opens_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first = database_of(path, None, MIB)
    for id in ("resp_a", "resp_b"):
        first.accept("me", queued(id))
    first.save("me", stored("resp_b", is_accepted=True))
    first.close()
    second = database_of(path, None, MIB)
    lost, done = second.response("me", "resp_a"), second.response("me", "resp_b")
    second.close()
    assert lost is not None and lost.body["status"] == "failed"
    assert "the server stopped" in lost.body["error"]["message"] and lost.inputs
    assert done is not None and done.body["status"] == "completed" and len(done.inputs) == 1


def test_a_response_that_ends_before_it_is_accepted_stays_as_it_ended() -> None:
    database = database_of(None, None, MIB)
    database.save("me", stored("resp_a"))
    database.accept("me", queued("resp_a"))
    record = database.response("me", "resp_a")
    assert record is not None and record.body["status"] == "completed"
    assert database.used_bytes == database.room.counted()


def test_what_has_not_ended_makes_no_room_for_others() -> None:
    database = database_of(None, None, 4000)
    database.accept("me", queued("resp_a"))
    for i in range(20):
        database.save("me", stored(f"resp_{i}", "x" * 500))
    assert database.response("me", "resp_a") is not None
    with pytest.raises(RequestError, match="have not ended") as caught:
        for i in range(20):
            database.accept("me", queued(f"resp_q{i}"))
    assert caught.value.code == "store_full"


def accept_for_ever(path: Path, number: int, out: int) -> None:
    """Accept, save and delete responses, and tell of each as a server tells its client."""
    database = database_of(path, None, MIB)
    for i in range(10_000):
        id = f"resp_{number}_{i}"
        database.accept("me", queued(id))
        os.write(out, f"{id}\n".encode())
        if i % 3:
            database.save("me", stored(id, is_accepted=True))
        if i % 6 == 1:
            database.delete("response", "me", id)
            os.write(out, f"-{id}\n".encode())


def kill_at_random_points(path: Path, kills: int) -> None:
    random = Random(3)
    for number in range(kills):
        read, write = os.pipe()
        if not (child := os.fork()):
            accept_for_ever(path, number, write)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            lines = [stream.readline() for _ in range(random.randrange(1, 60))]
            os.kill(child, signal.SIGKILL)
            lines += stream.readlines()
        os.waitpid(child, 0)
        names = [line.decode().strip() for line in lines if line.endswith(b"\n")]
        gone = {name[1:] for name in names if name.startswith("-")}
        database = database_of(path, None, MIB)
        for id in (name for name in names if not name.startswith("-")):
            record = database.response("me", id)
            if record is None:  # killed after a deletion, and before it was told
                assert id in gone or (id == names[-1] and int(id.rpartition("_")[2]) % 6 == 1)
            else:
                assert id not in gone and record.body["status"] in ENDED
        database.close()


@pytest.mark.parametrize("kills", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_every_accepted_response_has_ended_after_a_kill_at_any_point(
    tmp_path: Path, kills: int
) -> None:
    """In a process without threads, which may fork."""
    script = "import sys; from pathlib import Path; from tests.server.test_accepted import *; "
    script += "kill_at_random_points(Path(sys.argv[1]), int(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store.db"), str(kills)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_response_is_stored_when_its_client_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    llm = FakeLLM(endless=True, delay=0.01)
    with TestClient(app_of(llm, store)) as http:
        made = http.post(RESPONSES, json=BACKGROUND).json()
        assert made["status"] == "queued"
        rows = store._database.tables.all("SELECT id, text FROM records")
        assert rows == [(made["id"], None)]
        assert http.post(f"{RESPONSES}/{made['id']}/cancel").json()["status"] == "cancelled"
        wait_until(lambda: not llm.live)
        assert http.get(f"{RESPONSES}/{made['id']}").json()["status"] == "cancelled"


def test_a_response_that_is_deleted_while_it_is_generated_stays_deleted() -> None:
    llm = FakeLLM(endless=True, delay=0.01)
    with TestClient(app_of(llm, Store())) as http:
        made = http.post(RESPONSES, json=BACKGROUND).json()
        assert http.delete(f"{RESPONSES}/{made['id']}").status_code == 200
        wait_until(lambda: not llm.live)
        assert http.get(f"{RESPONSES}/{made['id']}").status_code == 404


# --- full disks -----------------------------------------------------------------------------------


def test_on_a_full_disk_nothing_is_accepted_that_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    llm = FakeLLM(endless=True, delay=0.01)
    store = Store()
    monkeypatch.setattr(Database, "accept", full)
    with caplog.at_level(logging.ERROR), TestClient(app_of(llm, store)) as http:
        for _ in range(3):
            answer = http.post(RESPONSES, json=BACKGROUND)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "store_unavailable"
        wait_until(lambda: not llm.live)
        assert "inferno_store_errors_total 3.0" in http.get("/metrics").text
    lines = [record for record in caplog.records if "the store cannot be used" in record.message]
    assert len(lines) == 1, "a client cannot fill the log"


def test_a_response_whose_end_cannot_be_stored_is_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "save", full)
    with TestClient(app_of(FakeLLM(), Store())) as http:
        made = http.post(RESPONSES, json=BACKGROUND).json()
        path = f"{RESPONSES}/{made['id']}"
        wait_until(lambda: http.get(path).json()["status"] == "failed")
        assert "disk is full" in http.get(path).json()["error"]["message"]


def test_a_response_whose_failure_cannot_be_stored_is_shown_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Database, "save", full)
    monkeypatch.setattr(Database, "fail", full)
    with TestClient(app_of(FakeLLM(), Store())) as http:
        made = http.post(RESPONSES, json=BACKGROUND).json()
        path = f"{RESPONSES}/{made['id']}"
        wait_until(lambda: http.get(path).json()["status"] == "failed")


@define(eq=False)
class FullDisk:
    """A disk on which nothing is free but what the reserve gives up."""

    tables: SqliteTables

    def check(self) -> None:
        path = self.tables._reserve.path
        assert path is not None
        if path.stat().st_size:
            raise sqlite3.OperationalError("database or disk is full")


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Callable[[], Database]]:
    opened = list[Database]()

    def make() -> Database:
        opened.append(database_of(tmp_path / "store.db", None, MIB))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_a_full_disk_does_not_keep_records_from_being_deleted(on_disk: Any) -> None:
    database = on_disk()
    database.save("me", stored("resp_a"))
    disk, transaction = FullDisk(database.tables), database.tables.transaction

    def on_full(work: Callable[[], Any], **options: Any) -> Any:
        def checked() -> Any:
            disk.check()
            return work()

        return transaction(checked, **options)

    database.tables.transaction = on_full
    assert database.delete("response", "me", "resp_a")
    assert database.response("me", "resp_a") is None
    assert database.used_bytes == database.room.counted() == 0
    path = database.tables._reserve.path
    assert path is not None and path.stat().st_size == SIZE, "it is taken again"
    assert os.stat(path).st_mode & 0o77 == 0


def test_a_reserve_is_given_up_once(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", 100)
    assert not reserve.release(), "there is none"
    reserve.fill()
    assert reserve.release() and not reserve.release()
    reserve.fill()
    assert (tmp_path / "reserve").stat().st_size == 100
    assert not Reserve(None).release()


def test_a_failure_of_the_store_is_counted() -> None:
    store = Store()

    async def fail() -> None:
        with pytest.raises(StoreError):
            await store.run(lambda _: full())

    asyncio.run(fail())
    assert store.errors == 1 and store.free_bytes() is None


def test_the_free_bytes_are_those_of_the_stores_disk(tmp_path: Path) -> None:
    free = Store(tmp_path / "store.db").free_bytes()
    assert free is not None and free > 0
