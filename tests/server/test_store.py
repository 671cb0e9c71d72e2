"""The store of responses and conversations: owners, bounds, faults of the file."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from litestar.testing import TestClient
from tests.server.server_fakes import FakeLLM

from inferno.errors import OptionError, RequestError
from inferno.server import ServerOptions, create_app
from inferno.server.responses.database import Database
from inferno.server.responses.items import Item, read_items
from inferno.server.responses.store import Store
from inferno.server.responses.stored import SCHEMAS, Stored
from inferno.server.storage.opening import open_tables

RESPONSES = "/v1/responses"
MIB = 2**20


def database_of(path: Path | None, seconds: float | None, max_bytes: int) -> Database:
    return Database(open_tables(path, SCHEMAS), seconds, max_bytes)


def write(database: Database, query: str, *values: Any) -> None:
    """Change what is stored as no server does."""
    database.tables.transaction(lambda: database.tables.run(query, *values))


def item(text: str = "hi") -> Item:
    return read_items(text)[0]


def stored(id: str, text: str = "hi", previous: str | None = None, **values: Any) -> Stored:
    body = {"id": id, "status": "completed", "output": [item(f"{text}!")]}
    return Stored(body=body, inputs=[item(text)], previous=previous, **values)


def texts(items: list[Item]) -> list[str]:
    return [each["content"][0]["text"] for each in items]


@pytest.fixture
def database() -> Iterator[Callable[..., Database]]:
    opened = []

    def make(
        path: Path | None = None, seconds: float | None = None, max_bytes: int = MIB
    ) -> Database:
        opened.append(database_of(path, seconds, max_bytes))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


# --- records --------------------------------------------------------------------------------------


def test_a_response_comes_back_as_it_was(database: Any) -> None:
    db = database()
    given = stored("resp_1", text="é\x00 \U0001f600", token_ids=(1, 2**31, 3))
    db.save("me", given)
    record = db.response("me", "resp_1")
    assert record == given
    assert db.response("you", "resp_1") is None
    assert db.item("me", record.inputs[0]["id"]) == record.inputs[0]
    assert db.item("you", record.inputs[0]["id"]) is None


def test_a_chain_is_read_from_its_beginning(database: Any) -> None:
    db = database()
    previous = None
    for i in range(50):
        db.save("me", stored(f"resp_{i}", str(i), previous))
        previous = f"resp_{i}"
    assert texts(db.chain("me", "resp_2")) == ["0", "0!", "1", "1!", "2", "2!"]
    assert len(db.chain("me", "resp_49")) == 100
    for owner, id in (("you", "resp_2"), ("me", "resp_50")):
        with pytest.raises(RequestError, match="not stored"):
            db.chain(owner, id)


def test_a_broken_chain_names_what_is_missing(database: Any) -> None:
    db = database()
    for id, previous in (("a", None), ("b", "a"), ("c", "b")):
        db.save("me", stored(id, previous=previous))
    assert db.delete("response", "me", "a")
    with pytest.raises(RequestError, match="'a' is not stored"):
        db.chain("me", "c")


def test_a_conversation_of_another_kind_or_owner_is_not_found(database: Any) -> None:
    db = database()
    db.create("me", {"id": "conv_1"}, [item()])
    assert db.conversation("you", "conv_1") is None
    assert db.response("me", "conv_1") is None
    assert not db.delete("response", "me", "conv_1")
    assert not db.delete("conversation", "you", "conv_1")
    assert db.all_items("you", "conv_1") is None
    assert db.page("conversation", "you", "conv_1", None, 5, "asc") is None
    assert not db.delete_item("you", "conv_1", db.all_items("me", "conv_1")[0]["id"])
    db.add("you", "conv_1", [item("mine now")])
    db.update("you", {"id": "conv_1", "metadata": {"x": "y"}})
    assert texts(db.all_items("me", "conv_1")) == ["hi"]
    assert db.conversation("me", "conv_1") == {"id": "conv_1"}


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_cover_a_list_once(database: Any, order: str) -> None:
    db = database()
    items = [item(str(i)) for i in range(10)]
    db.create("me", {"id": "c"}, items)
    db.delete_item("me", "c", items[4]["id"])
    seen: list[Item] = []
    while True:
        after = seen[-1]["id"] if seen else None
        page = db.page("conversation", "me", "c", after, 4, order)
        seen += page.items
        if not page.more:
            break
    wanted = [str(i) for i in range(10) if i != 4]
    assert texts(seen) == (wanted if order == "asc" else wanted[::-1])


# --- bounds ---------------------------------------------------------------------------------------


def test_the_least_recently_used_makes_room(database: Any) -> None:
    db = database(max_bytes=40_000)
    db.save("me", stored("first", "x" * 5000))
    for i in range(20):
        db.chain("me", "first")  # in use: stays
        db.save("me", stored(f"resp_{i}", "x" * 5000))
        assert db.used_bytes <= 40_000
    assert db.response("me", "first") is not None
    assert db.response("me", "resp_19") is not None
    assert db.response("me", "resp_10") is None


def test_the_count_of_bytes_is_that_of_the_rows(database: Any) -> None:
    db = database()
    db.create("me", {"id": "c"}, [item("x" * 100), item("y" * 200)])
    db.save("me", stored("r", "z" * 300, conversation="c"))
    db.delete_item("me", "c", db.all_items("me", "c")[1]["id"])
    assert db.used_bytes == db.room.counted() > 0
    db.delete("response", "me", "r")
    db.delete("conversation", "me", "c")
    assert db.used_bytes == db.room.counted() == 0
    assert db.tables.one("SELECT COUNT(*) FROM items") == (0,)


def test_what_cannot_fit_is_refused_and_costs_nothing_else(database: Any) -> None:
    db = database(max_bytes=20_000)
    db.save("me", stored("small"))
    db.create("me", {"id": "c"}, [item()])
    with pytest.raises(RequestError, match="--store-size"):
        db.save("me", stored("large", "x" * 20_000))
    with pytest.raises(RequestError, match="--store-size"):
        db.add("me", "c", [item("x" * 20_000)])
    assert db.response("me", "small") is not None
    assert texts(db.all_items("me", "c")) == ["hi"]
    assert db.used_bytes == db.room.counted()


def test_what_is_not_used_for_long_expires(database: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    db = database(path, seconds=100)
    db.save("me", stored("old"))
    db.save("me", stored("new"))
    write(db, "UPDATE records SET used = ? WHERE id = 'old'", time.time() - 101)
    db.expire()
    assert db.response("me", "old") is None
    assert db.response("me", "new") is not None
    write(db, "UPDATE records SET used = used - 101")
    db.close()
    assert database(path, seconds=100).used_bytes == 0, "expired at the start too"


def test_what_has_expired_is_not_found(client: Any) -> None:
    store = Store(days=1)
    http = client(store=store)
    made = http.post(RESPONSES, json={"input": "hi"}).json()
    path = f"{RESPONSES}/{made['id']}"
    assert http.get(path).status_code == 200

    asyncio.run(store.run(write, "UPDATE records SET used = used - 86401"))
    assert http.get(path).status_code == 404


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_kept_private_and_read_again(database: Any, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first = database(path)
    first.save("me", stored("r", "kept"))
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {0o600}
    first.close()
    again = database(path)
    assert texts(again.chain("me", "r")) == ["kept", "kept!"]
    assert again.used_bytes == again.room.counted() > 0


def test_deleted_content_is_gone_from_the_disk(database: Any, tmp_path: Path) -> None:
    db = database(tmp_path / "store.db")
    db.save("me", evolve(stored("r", "secret-content"), text="secret-output"))
    db.create("me", {"id": "c"}, [item("secret-item")])

    def on_disk() -> bytes:
        return b"".join(file.read_bytes() for file in tmp_path.iterdir())

    assert b"secret-content" in on_disk()
    db.delete("response", "me", "r")
    db.delete_item("me", "c", db.all_items("me", "c")[0]["id"])
    assert b"secret-" not in on_disk()


def test_a_second_server_is_refused(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferno.builtin.sqlite.PATIENCE", 0.1)
    database(tmp_path / "store.db").save("me", stored("r"))
    with pytest.raises(OptionError, match="another process uses"):
        Store(tmp_path / "store.db")


def test_another_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 100)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    before = text.read_bytes(), other.read_bytes()
    for path in (text, other, tmp_path, tmp_path / "missing" / "store.db"):
        with pytest.raises(OptionError) as caught:
            Store(path)
        assert "--store" in f"{caught.value}" or "new file" in f"{caught.value}"
    assert before == (text.read_bytes(), other.read_bytes())


def test_a_damaged_database_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first = database_of(path, None, MIB)
    for i in range(50):
        first.save("me", stored(f"resp_{i}", "x" * 1000))
    first.close()
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    try:
        store = Store(path)
    except OptionError as error:
        assert "--store" in str(error)
        return
    with TestClient(
        create_app(FakeLLM(), ServerOptions(store=store)),  # type: ignore[arg-type]
        raise_server_exceptions=False,
    ) as http:
        answer = http.post(RESPONSES, json={"input": "hi"})
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "store_unavailable"
        assert http.post(RESPONSES, json={"input": "hi", "store": False}).status_code == 200


# --- the server -----------------------------------------------------------------------------------


def test_a_failing_store_fails_what_it_was_asked_to_keep(client: Any) -> None:
    store = Store()
    http = client(store=store)
    first = http.post(RESPONSES, json={"input": "hi"}).json()
    asyncio.run(store.run(Database.close))
    for body in ({"input": "hi"}, {"input": "hi", "previous_response_id": first["id"]}):
        answer = http.post(RESPONSES, json=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "store_unavailable"
        assert "store: false" in answer.json()["error"]["message"]
    text = http.post(RESPONSES, json={"input": "hi", "stream": True}).text
    assert "event: response.failed" in text
    assert "event: response.completed" not in text
    assert http.get(f"{RESPONSES}/{first['id']}").status_code == 503
    assert http.post(RESPONSES, json={"input": "hi", "store": False}).status_code == 200


def test_keys_see_their_own_only(client: Any) -> None:
    http = client(api_keys=["mine", "yours"])
    mine, yours = ({"authorization": f"Bearer {key}"} for key in ("mine", "yours"))
    made = http.post(RESPONSES, json={"input": "hi"}, headers=mine).json()
    conversation = http.post("/v1/conversations", json={}, headers=mine).json()["id"]
    item = made["output"][0]["id"]
    calls: list[tuple[str, str, Any]] = [
        ("GET", f"{RESPONSES}/{made['id']}", None),
        ("GET", f"{RESPONSES}/{made['id']}/input_items", None),
        ("POST", f"{RESPONSES}/{made['id']}/cancel", None),
        ("DELETE", f"{RESPONSES}/{made['id']}", None),
        ("GET", f"/v1/conversations/{conversation}", None),
        ("POST", f"/v1/conversations/{conversation}", {"metadata": {}}),
        ("GET", f"/v1/conversations/{conversation}/items", None),
        ("POST", f"/v1/conversations/{conversation}/items", {"items": []}),
        ("DELETE", f"/v1/conversations/{conversation}", None),
        ("POST", RESPONSES, {"input": "x", "conversation": conversation}),
    ]
    for method, path, body in calls:
        assert http.request(method, path, json=body, headers=yours).status_code == 404, path
    for body in (
        {"input": "x", "previous_response_id": made["id"]},
        {"input": [{"type": "item_reference", "id": item}]},
    ):
        assert http.post(RESPONSES, json=body, headers=yours).status_code == 400
    assert http.get(f"{RESPONSES}/{made['id']}", headers=mine).status_code == 200
    assert http.get(f"/v1/conversations/{conversation}", headers=mine).status_code == 200


def test_no_key_is_stored(client: Any, tmp_path: Path) -> None:
    http = client(api_keys=["secret-key"], store=Store(tmp_path / "store.db"))
    headers = {"authorization": "Bearer secret-key"}
    assert http.post(RESPONSES, json={"input": "hi"}, headers=headers).status_code == 200
    assert b"secret-key" not in b"".join(f.read_bytes() for f in tmp_path.iterdir())


def test_a_store_of_no_size_stores_nothing(client: Any, tmp_path: Path) -> None:
    http = client(store=Store(tmp_path / "store.db", max_bytes=0))
    made = http.post(RESPONSES, json={"input": "hi"}).json()
    assert made["store"] is False
    assert http.get(f"{RESPONSES}/{made['id']}").status_code == 404
    assert http.post("/v1/conversations", json={}).status_code == 400
    assert list(tmp_path.iterdir()) == []


def test_the_raw_output_and_its_tokens_are_kept(client: Any) -> None:
    from tests.server.server_fakes import RESPONSE_TEMPLATE

    store, reply = Store(), "<think>Hm.</think>Yes"
    http = client(FakeLLM(reply=reply, response_template=RESPONSE_TEMPLATE), store=store)
    made = http.post(RESPONSES, json={"input": "hi"}).json()
    record = asyncio.run(store.run(Database.response, "", made["id"]))
    assert record is not None
    assert (record.text, bytes(record.token_ids).decode()) == (reply, reply)
