"""Tests of a store by what a server asks: responses, conversations, files, batches, leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferno.contracts import Tables
from inferno.errors import RequestError
from inferno.server.responses.database import Database
from inferno.server.responses.items import Item, read_items
from inferno.server.responses.stored import SCHEMAS, Stored
from inferno.server.storage.files import LeaseLostError
from inferno.server.storage.quotas import Quota

_LEASE = 0.3


def _item(text: str) -> Item:
    return read_items(text)[0]


def _stored(id: str, said: str = "hi", previous: str | None = None, **values: Any) -> Stored:
    body = {"id": id, "status": "completed", "output": [_item(f"{said}!")]}
    return Stored(body=body, inputs=[_item(said)], previous=previous, **values)


def _texts(items: Any) -> list[str]:
    return [each["content"][0]["text"] for each in items]


class ServedRecordTests:
    """A part of `RecordStoreTests`."""

    @pytest.fixture
    def served(self, opened: Callable[..., Tables]) -> Iterator[Callable[..., Database]]:
        """Opens the store as one more server's."""
        servers: list[Database] = []

        def make(max_bytes: int = 2**20, seconds: float | None = None) -> Database:
            servers.append(Database(opened(*SCHEMAS), seconds, max_bytes, _LEASE))
            return servers[-1]

        yield make
        for each in servers:
            each.close()

    def test_responses_and_conversations_are_kept(self, served: Callable[..., Database]) -> None:
        db, previous = served(), None
        for i in range(5):
            given = _stored(f"resp_{i}", f"{i}\x00", previous, text="\x00\x01é", token_ids=(1, 2))
            db.save("me", given)
            assert db.response("me", f"resp_{i}") == given
            previous = f"resp_{i}"
        assert len(_texts(db.chain("me", "resp_4"))) == 10
        assert db.chain("me", "resp_1")[0]["content"][0]["text"] == "0\x00"
        with pytest.raises(RequestError):
            db.chain("you", "resp_4")
        items = [_item(str(i)) for i in range(7)]
        items[3]["id"] = "odd \x00 id"
        db.create("me", {"id": "conv"}, items[:5])
        db.add("me", "conv", items[5:])
        db.save("me", _stored("resp_c", "more", conversation="conv"))
        assert db.item("me", "odd \x00 id") == items[3] == db.item("me", "odd \x00 id", "conv")
        assert db.item("me", "odd ") is db.item("you", "odd \x00 id") is None
        for order, wanted in (("asc", ["4", "5"]), ("desc", ["2", "1"])):
            page = db.page("conversation", "me", "conv", "odd \x00 id", 2, order)
            assert page is not None and page.more and _texts(page.items) == wanted
        assert db.delete_item("me", "conv", "odd \x00 id")
        assert not db.delete_item("me", "conv", "odd \x00 id")
        assert _texts(db.all_items("me", "conv")) == [*"012456", "more", "more!"]
        db.update("me", {"id": "conv", "metadata": {"a": "\x00"}})
        assert db.conversation("me", "conv") == {"id": "conv", "metadata": {"a": "\x00"}}
        assert db.used_bytes == db.room.counted() > 0
        assert db.delete("conversation", "me", "conv") and not db.delete("response", "me", "conv")
        assert db.used_bytes == db.room.counted()

    def test_room_is_made_and_quotas_hold(self, served: Callable[..., Database]) -> None:
        db = served(max_bytes=20_000)
        db.files.quota_of = lambda owner: Quota(bytes=5_000, files=2) if owner == "few" else Quota()
        for i in range(40):
            db.save("many", _stored(f"resp_{i}", "x" * 500))
        db.save("few", _stored("resp_few"))
        assert db.used_bytes == db.room.counted() <= 20_000
        assert db.response("many", "resp_0") is None and db.response("many", "resp_39") is not None
        with pytest.raises(RequestError):
            db.save("many", _stored("large", "x" * 30_000))
        with pytest.raises(RequestError):
            db.save("few", _stored("large", "x" * 6_000))
        assert db.response("few", "resp_few") is not None, "nothing is deleted in vain"
        db.files.create("file", "few", {"id": "file-1"}, [b"x" * 3_000])
        with pytest.raises(RequestError):
            db.files.create("file", "few", {"id": "file-2"}, [b"x" * 3_000])
        db.files.create("file", "few", {"id": "file-3"})
        with pytest.raises(RequestError):
            db.files.create("file", "few", {"id": "file-4"})
        with pytest.raises(RequestError):
            db.files.create("file", "many", {"id": "file-5"}, [b"x" * 18_000])

    def test_what_is_old_is_deleted(self, served: Callable[..., Database]) -> None:
        db = served(seconds=100)
        db.save("me", _stored("old"))
        db.save("me", _stored("new"))
        db.files.create("file", "me", {"id": "file-old"}, [b"x"])
        age = time.time() - 101
        db.tables.transaction(
            lambda: [
                db.tables.run("UPDATE records SET used = ? WHERE id = 'old'", age),
                db.tables.run("UPDATE files SET created = ?", age),
            ]
        )
        db.expire()
        assert db.response("me", "old") is None and db.response("me", "new") is not None
        assert db.files.find("file", "me", "file-old") is None and not db.files.parts("file-old")
        assert db.used_bytes == db.room.counted() and db.files.used_bytes == 0

    def test_files_are_kept_in_parts_and_listed(self, served: Callable[..., Database]) -> None:
        db = served()
        for i in range(5):
            body = {"id": f"file-{i}", "purpose": "batch" if i % 2 else "other"}
            db.files.create("file", "me", body, [bytes([i]) * 1000, b"\x00"])
        assert db.files.parts("file-3") == [b"\x03" * 1000, b"\x00"]
        assert [db.files.part("file-3", i) for i in (1, 2)] == [b"\x00", None]
        bodies, more = db.files.page("file", "me", "file-0", 3, "asc") or ([], False)
        assert [each["id"] for each in bodies] == ["file-1", "file-2", "file-3"] and more
        bodies, more = db.files.page("file", "me", None, 9, "desc", purpose="batch") or ([], True)
        assert [each["id"] for each in bodies] == ["file-3", "file-1"] and not more
        assert db.files.page("file", "you", "file-0", 3, "asc") is None
        assert db.files.used_bytes == db.files.counted() > 5_000
        assert db.files.delete("file", "me", "file-3") and not db.files.parts("file-3")
        assert db.files.used_bytes == db.files.counted() > 4_000

    def test_a_batch_is_leased_written_and_ended(self, served: Callable[..., Database]) -> None:
        db = served()
        db.files.create_batch("me", {"id": "batch_1", "status": "validating"}, 9)
        with pytest.raises(LeaseLostError):
            db.files.begin({"id": "batch_1", "status": "in_progress"})
        [batch] = db.files.claim([], [])
        assert batch.body["id"] == "batch_1" and db.leases.is_held("batch_1")
        db.files.create("file", "me", {"id": "file-out", "bytes": 0})
        for i in range(3):
            db.files.append("file-out", b"%d\n" % i, {"id": "batch_1", "status": "in_progress"})
        db.files.end("me", {"id": "batch_1", "status": "completed"}, ["file-out"])
        assert db.files.parts("file-out") == [b"0\n", b"1\n", b"2\n"]
        out = db.files.find("file", "me", "file-out")
        assert out is not None and out["bytes"] == 6
        assert db.files.used_bytes == db.files.counted()
        assert not db.leases.is_held("batch_1") and db.files.claim([], []) == []

    def test_what_a_server_left_is_failed_by_the_next(
        self, served: Callable[..., Database]
    ) -> None:
        first = served()
        pending = Stored(
            body={"id": "resp_1", "status": "queued", "output": []}, inputs=[_item("hi")]
        )
        first.accept("me", pending)
        first.files.create_batch("me", {"id": "batch_1", "status": "validating"}, 9)
        assert first.files.claim([], [])
        first.close()
        second = served()
        record = second.response("me", "resp_1")
        assert record is not None and record.body["status"] == "failed" and len(record.inputs) == 1
        assert [each.body["id"] for each in second.files.claim([], [])] == ["batch_1"]

    def test_what_a_silent_server_had_is_anothers(self, served: Callable[..., Database]) -> None:
        first = served()
        if not first.tables.shared:
            pytest.skip("one server has it to itself")
        second = served()
        pending = Stored(body={"id": "resp_1", "status": "queued", "output": []}, inputs=[])
        first.accept("me", pending)
        assert second.beat().kept and second.response("me", "resp_1") is not None
        assert second.cancel("me", "resp_1") and first.beat().cancelled == ("resp_1",)
        first.files.create_batch("me", {"id": "batch_1", "status": "validating"}, 9)
        assert first.files.claim([], []) and not second.files.claim([], [])
        time.sleep(_LEASE * 1.2)
        assert second.beat() and second.files.claim([], [])
        with pytest.raises(LeaseLostError):
            first.files.begin({"id": "batch_1", "status": "in_progress"})
        first.save("me", _stored("resp_1", is_accepted=True))
        record = second.response("me", "resp_1")
        assert record is not None and record.body["status"] == "cancelled"
        assert not first.beat().kept
