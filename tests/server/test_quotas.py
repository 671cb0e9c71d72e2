"""What keys may store, whose records make room, batches in turns, and wrong keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.server.conftest import wait_until
from tests.server.server_fakes import FakeLLM
from tests.server.test_batches import create, ended, line, upload
from tests.server.test_store import database_of, stored

from inferno.builtin.sqlite import SqliteTables
from inferno.errors import LimitError, RequestError
from inferno.server import ServerOptions, create_app
from inferno.server.access.guesses import TRIES, Guesses
from inferno.server.access.keys import Keys
from inferno.server.responses.database import Database
from inferno.server.responses.store import Store
from inferno.server.storage.objects import file_of
from inferno.server.storage.quotas import Quota

KEYS = """
[keys.small]
key = "small"
stored_bytes = 20000
files = 2
batches = 1
[keys.a]
key = "a"
[keys.b]
key = "b"
"""


@pytest.fixture
def database() -> Iterator[Callable[..., Database]]:
    opened: list[Database] = []

    def make(max_bytes: int = 2**20, **quotas: Quota) -> Database:
        opened.append(database_of(None, None, max_bytes))
        opened[-1].files.quota_of = lambda owner: quotas.get(owner, Quota())
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def ids(db: Database, owner: str, names: list[str]) -> list[str]:
    return [name for name in names if db.response(owner, name) is not None]


def test_a_key_s_records_make_room_for_its_own_and_not_for_those_of_one_with_more(
    database: Callable[..., Database],
) -> None:
    db = database(max_bytes=40_000)
    db.save("alice", stored("resp_a"))
    names = [f"resp_{i}" for i in range(30)]
    for name in names:
        db.save("bob", stored(name, "x" * 3000))
    assert db.response("alice", "resp_a") is not None, "it was used longest ago"
    left = ids(db, "bob", names)
    assert left == names[-len(left) :] and 3 < len(left) < 14


def test_a_quota_holds_for_responses_conversations_and_files_together(
    database: Callable[..., Database],
) -> None:
    db = database(alice=Quota(bytes=20_000))
    names = [f"resp_{i}" for i in range(10)]
    for name in names:
        db.save("alice", stored(name, "x" * 2500))
        db.save("bob", stored(f"{name}b", "x" * 2500))
    assert 1 < len(ids(db, "alice", names)) < 8
    assert len(ids(db, "bob", [f"{name}b" for name in names])) == 10
    db.files.create("file", "bob", file_of("f", 1, "batch"), [b"x" * 30_000])
    with pytest.raises(RequestError, match="this API key may store 20000 bytes"):
        db.files.create("file", "alice", file_of("f", 1, "batch"), [b"x" * 15_000])
    for name in ids(db, "alice", names):
        db.delete("response", "alice", name)
    db.files.create("file", "alice", file_of("f", 1, "batch"), [b"x" * 15_000])
    with pytest.raises(RequestError, match="this API key may store"):
        db.save("alice", stored("resp_big", "x" * 3000))


def test_a_conversation_that_grows_is_not_what_makes_room(
    database: Callable[..., Database],
) -> None:
    db = database(max_bytes=60_000)
    item = stored("resp_x", "y" * 6000).inputs[0]
    db.create("alice", {"id": "conv_a"}, [])
    for i in range(20):
        db.save("bob", stored(f"resp_{i}"))
    for _ in range(8):
        db.add("alice", "conv_a", [item])
    assert len(db.all_items("alice", "conv_a") or ()) == 8


def test_one_key_cannot_fill_the_room_for_files(database: Callable[..., Database]) -> None:
    db = database(max_bytes=100_000)
    made = 0
    with pytest.raises(RequestError, match="by this key"):
        for made in range(100):  # noqa: B007
            db.files.create("file", "bob", file_of("f", 1, "batch"), [b"x" * 1000])
    assert made > 60
    db.files.create("file", "alice", file_of("f", 1, "batch"), [b"x" * 1000])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., TestClient[Any]]]:
    clients: list[TestClient[Any]] = []
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)

    def start(llm: Any = None, **options: Any) -> TestClient[Any]:
        keys = Keys(file=file)
        model: Any = llm or FakeLLM()
        app = create_app(model, ServerOptions(api_keys=keys, **options))
        clients.append(TestClient(app))
        return clients[-1].__enter__()

    yield start
    for each in clients:
        each.__exit__(None, None, None)


def by(key: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {key}"}}


def test_files_and_batches_of_a_key_are_limited(start: Callable[..., TestClient[Any]]) -> None:
    llm = FakeLLM(endless=True, delay=0.01)
    http = start(llm, store=Store())
    made = create(http, line("1"), **by("small"))
    wait_until(lambda: bool(llm.live))
    file = upload(http, line("1"), **by("small")).json()["id"]
    body = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": file}
    refused = http.post("/v1/batches", json=body, **by("small"))
    assert refused.status_code == 429 and "1 batches have not ended" in refused.text
    refused = upload(http, line("1"), **by("small"))
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "store_full"
    assert upload(http, line("1"), **by("a")).status_code == 200
    http.post(f"/v1/batches/{made['id']}/cancel", **by("small"))


def test_batches_of_keys_take_turns(start: Callable[..., TestClient[Any]]) -> None:
    """One of a single request does not wait for the 400 of another key."""
    http = start(FakeLLM(delay=0.02, chunk=100), store=Store())
    long = create(http, *(line(str(i)) for i in range(400)), **by("a"))
    url = f"/v1/batches/{long['id']}"
    wait_until(lambda: http.get(url, **by("a")).json()["request_counts"]["completed"] > 0)
    short = create(http, line("1"), **by("b"))
    assert ended(http, short["id"], **by("b"))["status"] == "completed"
    assert http.get(url, **by("a")).json()["status"] == "in_progress"
    assert ended(http, long["id"], **by("a"))["request_counts"]["completed"] == 400


def test_a_batch_whose_key_is_over_its_limit_holds_no_other_up(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys.a]\nkey = "a"\nrequests_per_minute = 6\n[keys.b]\nkey = "b"\n')
    app = create_app(FakeLLM(), ServerOptions(api_keys=Keys(file=file)))  # type: ignore[arg-type]
    with TestClient(app) as http:
        slow = create(http, *(line(str(i)) for i in range(40)), **by("a"))
        done = ended(http, create(http, line("1"), **by("b"))["id"], **by("b"))
        assert done["status"] == "completed"
        batch = http.get(f"/v1/batches/{slow['id']}", **by("a")).json()
        assert batch["status"] == "in_progress"


def test_wrong_keys_are_slowed_down_and_known_ones_pass() -> None:
    now = [0.0]
    guesses = Guesses(lambda: now[0])
    for _ in range(TRIES):
        guesses.check("10.0.0.1")
        guesses.failed("10.0.0.1")
    with pytest.raises(LimitError) as caught:
        guesses.check("10.0.0.1")
    assert caught.value.headers["Retry-After"] == "2" and guesses.refused == 1
    guesses.check("10.0.0.2")
    now[0] += 2.1
    guesses.check("10.0.0.1")


def test_an_ipv6_network_is_one_client_and_a_unix_socket_none() -> None:
    guesses = Guesses(lambda: 0.0)
    for i in range(TRIES):
        guesses.failed(f"2001:db8::{i:x}")
        guesses.failed("")
    with pytest.raises(LimitError):
        guesses.check("2001:db8::ffff")
    guesses.check("2001:db8:0:1::1")
    guesses.check("")


def test_who_guesses_is_told_nothing_and_others_go_on(
    start: Callable[..., TestClient[Any]],
) -> None:
    http = start()
    assert http.get("/v1/models", **by("a")).status_code == 200
    codes = [http.get("/v1/models", **by(f"guess {i}")).status_code for i in range(TRIES + 5)]
    assert codes == [401] * TRIES + [429] * 5
    answer = http.get("/v1/models", **by("b"))
    assert answer.status_code == 429, "a right key that was never used is one guess more"
    assert int(answer.headers["retry-after"]) >= 1
    assert http.get("/v1/models", **by("a")).status_code == 200
    assert http.get("/v1/models").status_code == 401, "no key is no guess"


def test_a_store_of_the_version_before_gets_the_index(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    db = database_of(path, None, 2**20)
    db.save("alice", stored("resp_a"))
    assert isinstance(db.tables, SqliteTables)
    db.tables.raw.executescript(
        "DROP INDEX records_by_owner; DROP TABLE totals; DROP TABLE servers; DROP TABLE leases; "
        "PRAGMA user_version = 3;"
    )
    db.close()
    db = database_of(path, None, 2**20)
    assert db.response("alice", "resp_a") is not None
    plan = str(db.tables.all("EXPLAIN QUERY PLAN SELECT SUM(bytes) FROM records WHERE owner = ''"))
    assert "COVERING INDEX records_by_owner" in plan
    db.close()


def test_quotas_are_read_again_with_the_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)
    keys = Keys(file=file)
    [small] = [key for key in keys.all if key.name == "small"]
    assert keys.quota_of(small.digest.hex()) == Quota(20_000, 2, 1)
    file.write_text(KEYS.replace("20000", "10"))
    keys.reload()
    assert keys.quota_of(small.digest.hex()).bytes == 10
    assert keys.quota_of("nobody") == Quota()
    store = Store()
    store.limit(keys.quota_of)
    with pytest.raises(RequestError, match="may store 10 bytes"):
        asyncio.run(store.run(Database.save, small.digest.hex(), stored("resp_1")))
    store.close()
