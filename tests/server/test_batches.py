"""Files and batches of OpenAI's Batch API, over a fake model."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.server.conftest import wait_until
from tests.server.server_fakes import FakeLLM
from tests.server.test_store import database_of, write

from inferno.errors import StoreError
from inferno.server import ServerOptions, create_app
from inferno.server.access.keys import Keys
from inferno.server.batches.service import MAX_UNFINISHED
from inferno.server.responses.store import Store
from inferno.server.responses.stored import SCHEMA
from inferno.server.storage.files import Files
from inferno.server.storage.objects import ENDED, WINDOW_SECONDS

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}
KEYS = """
[keys.a]
key = "a"
[keys.b]
key = "b"
requests_per_minute = 600
"""


def line(custom_id: Any, url: Any = CHAT, body: Any = BODY, **more: Any) -> bytes:
    request = {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}
    return json.dumps(request).encode() + b"\n"


def upload(http: Any, *lines: bytes, purpose: str = "batch", **options: Any) -> Any:
    files = {"file": ("requests.jsonl", b"".join(lines))}
    return http.post("/v1/files", files=files, data={"purpose": purpose}, **options)


def create(http: Any, *lines: bytes, endpoint: str = CHAT, **options: Any) -> Any:
    body = {"endpoint": endpoint, "completion_window": "24h", "metadata": {"run": "1"}}
    file = upload(http, *lines, **options).json()["id"]
    return http.post("/v1/batches", json={**body, "input_file_id": file}, **options).json()


def ended(http: Any, id: str, **options: Any) -> Any:
    batch: Any = {}

    def is_ended() -> bool:
        nonlocal batch
        batch = http.get(f"/v1/batches/{id}", **options).json()
        return batch["status"] in ENDED

    wait_until(is_ended)
    return batch


def answers(http: Any, id: str | None, **options: Any) -> dict[str, Any]:
    if id is None:
        return {}
    content = http.get(f"/v1/files/{id}/content", **options).text
    return {each["custom_id"]: each for each in map(json.loads, content.splitlines())}


Start = Callable[..., TestClient[Any]]


@pytest.fixture
def start() -> Iterator[Start]:
    opened: list[TestClient[Any]] = []

    def start(llm: FakeLLM | None = None, **options: Any) -> TestClient[Any]:
        app = create_app(llm or FakeLLM(), ServerOptions(**options))  # type: ignore[arg-type]
        opened.append(TestClient(app, raise_server_exceptions=False).__enter__())
        return opened[-1]

    yield start
    for each in opened:
        each.__exit__(None, None, None)


# --- files ----------------------------------------------------------------------------------------


def test_a_file_comes_back_as_it_was_and_is_deleted(start: Start) -> None:
    http = start()
    content = b"".join(line(str(i), body={"prompt": "x" * 1000}) for i in range(2500))
    made = upload(http, content)
    assert made.status_code == 200
    file = made.json()
    assert file["object"] == "file" and file["id"].startswith("file-")
    assert (file["bytes"], file["filename"], file["purpose"], file["status"]) == (
        len(content),
        "requests.jsonl",
        "batch",
        "processed",
    )
    path = f"/v1/files/{file['id']}"
    assert http.get(path).json() == file
    answer = http.get(f"{path}/content")
    assert answer.content == content
    assert answer.headers["Content-Type"].startswith("application/octet-stream")
    assert http.delete(path).json() == {"id": file["id"], "object": "file", "deleted": True}
    for method, gone in (("GET", path), ("GET", f"{path}/content"), ("DELETE", path)):
        assert http.request(method, gone).status_code == 404


def test_files_are_listed_page_by_page(start: Start) -> None:
    http = start()
    ids = [upload(http, line(str(i))).json()["id"] for i in range(3)]
    first = http.get("/v1/files", params={"limit": 2, "order": "asc"}).json()
    assert [each["id"] for each in first["data"]] == ids[:2] and first["has_more"]
    rest = {"limit": 2, "order": "asc", "after": first["last_id"]}
    assert [each["id"] for each in http.get("/v1/files", params=rest).json()["data"]] == ids[2:]
    newest = http.get("/v1/files", params={"limit": 1}).json()
    assert [each["id"] for each in newest["data"]] == ids[2:]
    assert http.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []
    wrong = http.get("/v1/files", params={"after": "file-nothing"})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "after"


@pytest.mark.parametrize(
    ("files", "data", "status"),
    [
        ({"file": ("x", b"")}, {"purpose": "batch"}, 400),
        ({"file": ("x", b"{}")}, {"purpose": "fine-tune"}, 400),
        ({"other": ("x", b"{}")}, {"purpose": "batch"}, 400),
        ({"file": ("x", b"{}" * 4000)}, {"purpose": "batch"}, 400),
        ({"file": ("x", b"{}" * 40000)}, {"purpose": "batch"}, 413),
    ],
)
def test_files_that_are_refused(start: Start, files: Any, data: Any, status: int) -> None:
    http = start(store=Store(max_bytes=5000), max_body_bytes=50_000)
    answer = http.post("/v1/files", files=files, data=data)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_form_is_for_files_only_and_not_for_other_origins(start: Start) -> None:
    http = start()
    files = {"file": ("x", b"{}")}
    assert http.post(CHAT, files=files).status_code == 415
    foreign = http.post("/v1/files", files=files, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_answers_its_requests(start: Start) -> None:
    http = start()
    bad: dict[str, Any] = {"messages": []}
    made = create(http, line("a"), line("b", body={**BODY, "max_tokens": 3}), line("c", body=bad))
    assert made["object"] == "batch" and made["status"] == "validating"
    assert made["metadata"] == {"run": "1"} and made["expires_at"] - made["created_at"] == 86_400
    done = ended(http, made["id"])
    assert done["status"] == "completed" and done["errors"] is None
    assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert done["in_progress_at"] and done["completed_at"]
    results = answers(http, done["output_file_id"])
    assert results.keys() == {"a", "b"}
    assert results["a"]["response"]["status_code"] == 200 and results["a"]["error"] is None
    choice = results["b"]["response"]["body"]["choices"][0]
    assert choice["message"]["content"] == "Hel"
    failed = answers(http, done["error_file_id"])["c"]
    assert failed["response"]["status_code"] == 400 and failed["error"]["message"]
    file = http.get(f"/v1/files/{done['output_file_id']}").json()
    content = http.get(f"/v1/files/{done['output_file_id']}/content").content
    assert (file["purpose"], file["bytes"]) == ("batch_output", len(content))
    listed = http.get("/v1/batches").json()
    assert [each["id"] for each in listed["data"]] == [made["id"]] and not listed["has_more"]
    late = http.post(f"/v1/batches/{made['id']}/cancel")
    assert late.status_code == 400 and "is completed" in late.json()["error"]["message"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line("a"), line("a")], "line 2: its custom_id is that of an earlier line"),
        ([line("a"), b"{\n"], "line 2: it is not valid JSON"),
        ([line("a", "/v1/completions", {"prompt": "x"})], "its url is not the batch's endpoint"),
        ([line("a", body={**BODY, "stream": True})], "asks for a stream"),
        ([b"\n \n"], "has no request"),
    ],
)
def test_an_invalid_file_fails_the_batch(start: Start, lines: list[bytes], said: str) -> None:
    http = start()
    done = ended(http, create(http, *lines)["id"])
    assert done["status"] == "failed" and done["failed_at"]
    assert said in done["errors"]["data"][0]["message"]
    assert done["output_file_id"] is None


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"endpoint": "/v1/models"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"metadata": {"a": 1}}, 400, "metadata"),
        ({"input_file_id": "file-nothing"}, 404, None),
        ({"input_file_id": "../x"}, 404, None),
    ],
)
def test_batches_that_are_refused(
    start: Start, body: dict[str, Any], status: int, param: str | None
) -> None:
    http = start()
    file = upload(http, line("a")).json()["id"]
    wanted = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **body}
    answer = http.post("/v1/batches", json=wanted)
    assert answer.status_code == status and answer.json()["error"]["param"] == param


def test_a_running_batch_and_a_waiting_one_are_cancelled(start: Start) -> None:
    llm = FakeLLM(endless=True, delay=0.01)
    http = start(llm)
    first, second = (create(http, *(line(str(i)) for i in range(3))) for _ in range(2))
    wait_until(lambda: len(llm.live) == 3)
    waiting = http.post(f"/v1/batches/{second['id']}/cancel").json()
    assert waiting["status"] == "cancelled" and waiting["cancelled_at"]
    assert http.post(f"/v1/batches/{first['id']}/cancel").json()["status"] == "cancelling"
    assert ended(http, first["id"])["status"] == "cancelled"
    wait_until(lambda: not llm.live)
    assert http.post("/v1/batches/batch_nothing/cancel").status_code == 404
    llm.endless = False
    assert ended(http, create(http, line("a"))["id"])["status"] == "completed"


def test_a_batch_goes_on_after_a_restart(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    slow = FakeLLM(delay=0.2, chunk=100)
    first = start(slow, store=Store(path))
    made = create(first, *(line(str(i)) for i in range(80)))
    url = f"/v1/batches/{made['id']}"
    wait_until(lambda: first.get(url).json()["request_counts"]["completed"] >= 1)
    first.__exit__(None, None, None)
    assert len(slow.seen) < 80
    llm = FakeLLM()
    second = start(llm, store=Store(path))
    done = ended(second, made["id"])
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 80, "completed": 80, "failed": 0}
    results = answers(second, done["output_file_id"])
    assert results.keys() == {str(i) for i in range(80)}
    assert 0 < len(llm.seen) < 80  # what was answered before is not asked again


def test_a_late_batch_expires_with_what_it_has(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = start(FakeLLM(delay=0.2, chunk=100))
    made = create(http, *(line(str(i)) for i in range(500)))
    wait_until(
        lambda: http.get(f"/v1/batches/{made['id']}").json()["request_counts"]["completed"] > 0
    )
    late = time.time() + WINDOW_SECONDS + 1
    monkeypatch.setattr("inferno.server.batches.service.time", SimpleNamespace(time=lambda: late))
    done = ended(http, made["id"])
    assert done["status"] == "expired" and done["expired_at"]
    assert 0 < done["request_counts"]["completed"] < 500


def test_requests_that_are_refused_for_now_are_sent_again(start: Start) -> None:
    llm = FakeLLM()
    llm.alive = False
    http = start(llm)
    made = create(http, line("a"))
    time.sleep(0.3)
    assert http.get(f"/v1/batches/{made['id']}").json()["status"] == "in_progress"
    llm.alive = True
    done = ended(http, made["id"])
    assert done["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


def test_a_full_store_ends_a_batch(start: Start) -> None:
    http = start(store=Store(max_bytes=9_000))
    done = ended(http, create(http, *(line(str(i)) for i in range(30)))["id"])
    assert done["status"] == "failed" and done["errors"]["data"][0]["code"] == "store_full"
    assert 0 < done["request_counts"]["completed"] < 30


def test_an_end_that_cannot_be_stored_is_stored_once_there_is_room(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferno.server.batches.service.RETRY", 0.1)
    store, end, failures = Store(), Files.end, [2]

    def full(files: Files, *values: Any) -> None:
        if failures[0]:
            failures[0] -= 1
            raise StoreError("the store cannot be used: database or disk is full", "Make room.")
        end(files, *values)

    monkeypatch.setattr(Files, "end", full)
    http = start(store=store)
    done = ended(http, create(http, line("a"))["id"])
    assert (done["status"], failures) == ("completed", [0])


class Noting(FakeLLM):
    """Notes the priority of each request."""

    def stream_all(self, *args: Any, priority: int = 0, **options: Any) -> Any:
        self.aborted.append(str(priority))
        return super().stream_all(*args, priority=priority, **options)


def test_clients_come_first(start: Start) -> None:
    llm = Noting()
    http = start(llm)
    ended(http, create(http, line("a"), line("b", body={**BODY, "priority": 3}))["id"])
    http.post(CHAT, json=BODY)
    assert sorted(llm.aborted) == ["0", "10", "3"]


def test_files_and_batches_belong_to_keys(start: Start, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)
    keys = Keys(file=tmp_path / "keys.toml")
    http = start(api_keys=keys)
    a, b = (dict[str, Any](headers={"Authorization": f"Bearer {key}"}) for key in "ab")
    done = ended(http, create(http, line("x"), line("y"), **b)["id"], **b)
    assert done["status"] == "completed"
    assert answers(http, done["output_file_id"], **b).keys() == {"x", "y"}
    for path in (
        f"/v1/batches/{done['id']}",
        f"/v1/files/{done['output_file_id']}",
        f"/v1/files/{done['input_file_id']}/content",
    ):
        assert http.get(path, **a).status_code == 404 and http.get(path).status_code == 401
    assert http.get("/v1/files", **a).json()["data"] == []
    usage = next(key for key in keys.all if key.name == "b").account.usage
    assert usage.requests == 2 + 2 and usage.completion_tokens == 2 * len("Hello there")
    foreign = {"input_file_id": done["input_file_id"], "endpoint": CHAT}
    assert http.post("/v1/batches", json=foreign, **a).status_code == 404


def test_a_batch_whose_key_is_gone_fails(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    http = start(FakeLLM(endless=True, delay=0.05), store=Store(path))
    made = create(http, line("a"))
    http.__exit__(None, None, None)
    store = Store(path)
    start(store=store, api_keys=["k"])  # nobody's key

    def found() -> Any:
        return asyncio.run(store.run(lambda db: db.files.find("batch", "", made["id"])))

    wait_until(lambda: found()["status"] == "failed")
    assert found()["errors"]["data"][0]["code"] == "invalid_api_key"


def test_unfinished_batches_are_bounded(start: Start) -> None:
    http = start(FakeLLM(endless=True, delay=0.05))
    file = upload(http, line("a")).json()["id"]
    body = {"input_file_id": file, "endpoint": CHAT}
    codes = [http.post("/v1/batches", json=body).status_code for _ in range(MAX_UNFINISHED + 1)]
    assert codes == [200] * MAX_UNFINISHED + [429]


# --- the database ---------------------------------------------------------------------------------


def test_a_store_of_the_first_version_gets_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    old = sqlite3.connect(path)
    old.executescript(f"{SCHEMA} PRAGMA application_id = {0x696E6672}; PRAGMA user_version = 1;")
    old.close()
    path.chmod(0o600)
    database = database_of(path, None, 2**20)
    database.files.create("file", "", {"id": "file-1"}, [b"x", b"y"])
    assert database.files.parts("file-1") == [b"x", b"y"]
    database.close()
    again = database_of(path, None, 2**20)
    assert again.files.find("file", "", "file-1") == {"id": "file-1"}
    again.close()


def test_old_files_are_deleted_but_no_unfinished_batch() -> None:
    async def check() -> None:
        store = Store(days=1)
        await store.run(lambda db: db.files.create("file", "", {"id": "file-1"}, [b"x"]))
        await store.run(lambda db: db.files.create("batch", "", {"id": "batch_1"}, ended=False))
        await store.run(write, "UPDATE files SET created = created - 90000")
        assert await store.run(lambda db: db.files.find("file", "", "file-1")) is None
        assert await store.run(lambda db: db.files.parts("file-1")) == []
        assert await store.run(lambda db: db.files.find("batch", "", "batch_1")) is not None
        store.close()

    asyncio.run(check())
