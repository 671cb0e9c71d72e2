"""Several models behind one app, over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import wait_until
from tests.server.model_fakes import GIB, FakeModel
from tests.server.server_fakes import FakeLLM

from inferno.errors import CheckpointError, ModelNotFoundError
from inferno.server.app import models_of

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def several(client: Any) -> Callable[..., TestClient[Any]]:
    def start(*models: FakeModel, **options: Any) -> TestClient[Any]:
        http: TestClient[Any] = client([model.spec() for model in models], **options)
        return http

    return start


def ask(http: TestClient[Any], model: str | None = None, **body: Any) -> Any:
    return http.post(CHAT, json={"messages": MESSAGES, "model": model, **body})


def statuses(http: TestClient[Any]) -> dict[str, str]:
    return {card["id"]: card["status"] for card in http.get("/v1/models").json()["data"]}


def test_each_request_is_answered_by_its_model(several: Any) -> None:
    http = several(FakeModel("a", preload=True), FakeModel("b", aliases=("bee",)))
    wait_until(lambda: http.get("/health").status_code == 200)
    assert statuses(http) == {"a": "loaded", "b": "unloaded", "bee": "unloaded"}
    for name, shown, text in (
        ("b", "b", "I am b"),
        ("bee", "bee", "I am b"),
        (None, "a", "I am a"),
    ):
        answer = ask(http, name).json()
        assert answer["model"] == shown
        assert answer["choices"][0]["message"]["content"] == text
    assert set(statuses(http).values()) == {"loaded"}
    assert ask(http, "c").status_code == 404
    health = http.get("/health").json()
    assert health == {"status": "ok", "models": {"a": "loaded", "b": "loaded"}}


def test_metrics_are_by_model_and_an_unloaded_one_is_down(several: Any) -> None:
    http = several(FakeModel("a"), FakeModel("b"))
    ask(http, "a", n=2)
    samples = {
        (s.name, s.labels.get("model_name")): s.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for s in family.samples
    }
    assert (samples["inferno_engine_up", "a"], samples["inferno_engine_up", "b"]) == (1, 0)
    assert samples["inferno_request_success_total", "a"] == 2
    assert samples["inferno_model_memory_bytes", "a"] == GIB
    assert ("inferno_num_requests_running", "a") in samples
    assert ("inferno_num_requests_running", "b") not in samples


def test_a_dead_engine_leaves_the_other_models_alone(several: Any) -> None:
    a, b = FakeModel("a"), FakeModel("b")
    http = several(a, b)
    for name in "ab":
        assert ask(http, name).status_code == 200
    a.running[0].alive = False
    assert ask(http, "a").json()["error"]["code"] == "engine_restarting"
    assert ask(http, "b").status_code == 200
    assert statuses(http) == {"a": "restarting", "b": "loaded"}
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (CheckpointError("torn", "Get it again."), 503, "model_unavailable"),
        (ModelNotFoundError("no x", "Look again."), 404, "model_not_found"),
    ],
)
def test_a_model_that_does_not_load_is_a_typed_error(
    several: Any, error: Exception, status: int, code: str
) -> None:
    http = several(FakeModel("a", plan_error=error), FakeModel("b"))
    for _ in range(2):
        answer = ask(http, "a")
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == code
        assert "does not load" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert int(answer.headers["retry-after"]) >= 4
    assert ask(http, "b").status_code == 200
    card = http.get("/v1/models/a").json()
    assert card["status"] == "failed" and card["error"]


def test_queues_do_not_mix(live: Any) -> None:
    a = FakeModel("a", options={"endless": True, "delay": 0.005})
    b = FakeModel("b")
    server = live([a.spec(), b.spec()], max_waiting=0)
    body = {"messages": MESSAGES, "max_tokens": 10**6, "n": 4, "stream": True, "model": "a"}
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=20) as running:
        lines = running.iter_lines()
        assert next(lines).startswith("data:")
        short = {"messages": MESSAGES, "max_tokens": 1}
        full = server.post(CHAT, **short, model="a")
        assert full.status_code == 429 and full.json()["error"]["code"] == "rate_limit_exceeded"
        assert server.post(CHAT, **short, model="b").status_code == 200


def test_a_stream_holds_its_model_and_ends_before_it_is_unloaded(live: Any) -> None:
    a = FakeModel("a", options={"endless": True, "delay": 0.005})
    server = live([a.spec()])
    body = {"messages": MESSAGES, "max_tokens": 300, "stream": True}
    answers: list[httpx.Response] = []

    def unload() -> None:
        answers.append(server.post("/v1/models/unload", model="a"))

    with httpx.stream("POST", server.url + CHAT, json=body, timeout=20) as running:
        lines = running.iter_lines()
        next(lines)
        thread = threading.Thread(target=unload)
        thread.start()
        wait_until(lambda: models_of(server.app).hosted[0].status == "unloading")
        rest = list(lines)
    thread.join()
    assert rest[-2] == "data: [DONE]"
    assert answers[0].json()["status"] == "unloaded"
    assert a.made[0].is_closed
    assert server.post(CHAT, messages=MESSAGES, max_tokens=1).status_code == 200
    assert len(a.made) == 2


def test_a_request_that_does_not_end_is_aborted_by_the_unload(live: Any) -> None:
    a = FakeModel("a", options={"endless": True, "delay": 0.005})
    server = live([a.spec()])
    body = {"messages": MESSAGES, "max_tokens": 10**9, "stream": True}
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=20) as running:
        lines = running.iter_lines()
        next(lines)
        done = threading.Thread(
            target=lambda: server.post("/v1/models/unload", model="a", seconds=0.1)
        )
        done.start()
        rest = list(lines)
    done.join()
    assert "the model was unloaded" in rest[-2]
    assert not a.running


def test_loading_and_unloading_is_for_admins(live: Any) -> None:
    server = live([FakeModel("a").spec(), FakeModel("b").spec()])
    assert server.post("/v1/models/load", model="b").json()["status"] == "loaded"
    shown = httpx.get(server.url + "/v1/models/status").json()["models"]
    assert [(m["name"], m["status"]) for m in shown] == [("a", "unloaded"), ("b", "loaded")]
    body, far = {"model": "b"}, {"X-Forwarded-For": "203.0.113.7"}
    refused = httpx.post(server.url + "/v1/models/unload", json=body, headers=far)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "permission_denied"
    assert server.post("/v1/models/unload", model="c").status_code == 404


def test_the_memory_of_the_only_model_is_shown(live: Any) -> None:
    server = live(FakeLLM())
    [shown] = httpx.get(server.url + "/v1/models/status").json()["models"]
    assert (shown["bytes"], shown["device"]) == (150, "cpu")
    metrics = httpx.get(server.url + "/metrics").text
    assert 'inferno_model_memory_bytes{model_name="fake"} 150.0' in metrics


def test_the_server_answers_while_models_load(live: Any) -> None:
    gate = asyncio.Event()
    a, b = FakeModel("a", preload=True, gate=gate), FakeModel("b")
    server = live([a.spec(), b.spec()])
    wait_until(lambda: models_of(server.app).hosted[0].status == "loading")
    health = httpx.get(server.url + "/health")
    assert (health.status_code, health.json()["status"]) == (503, "loading")
    answers: list[httpx.Response] = []
    first = threading.Thread(target=lambda: answers.append(server.post(CHAT, messages=MESSAGES)))
    first.start()
    wait_until(lambda: models_of(server.app).hosted[0].waiting == 2)  # the preload, and the request
    gate.set()
    first.join(20)
    assert answers[0].json()["choices"][0]["message"]["content"] == "I am a"
    wait_until(lambda: httpx.get(server.url + "/health").status_code == 200)


@pytest.mark.parametrize("error", [None, CheckpointError("torn", "Get it again.")])
def test_a_stream_is_kept_alive_while_its_model_loads(live: Any, error: Exception | None) -> None:
    gate = asyncio.Event()
    a = FakeModel("a", gate=gate, error=error)
    server = live([a.spec()], ping_seconds=0.02)
    body = {"messages": MESSAGES, "stream": True, "model": "a"}
    headers = {"x-request-id": "r-1", "Origin": server.url}
    with httpx.stream("POST", server.url + CHAT, json=body, headers=headers) as running:
        assert running.status_code == 200
        assert running.headers["content-type"].startswith("text/event-stream")
        assert running.headers.get_list("x-request-id") == ["r-1"]
        lines = running.iter_lines()
        assert [next(lines) for _ in range(4)] == [": ping", "", ": ping", ""]
        gate.set()
        rest = [line for line in lines if line and line != ": ping"]
    if error is None:
        assert rest[-1] == "data: [DONE]" and "I a" in rest[1]
    else:
        [line] = rest
        assert json.loads(line.removeprefix("data: "))["error"]["code"] == "model_unavailable"


def test_a_whole_answer_that_waits_for_a_load_has_its_own_status(live: Any) -> None:
    a = FakeModel("a", error=CheckpointError("torn", "Get it again."))
    server = live([a.spec()], ping_seconds=0.001)
    assert server.post(CHAT, messages=MESSAGES).status_code == 503
