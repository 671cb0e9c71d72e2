"""A model with several engines: what a server says of each, and of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.server_fakes import FakeLLM

from inferno.errors import EngineDeadError
from inferno.process.health import EngineState, EngineView, Health
from inferno.request.requests import EngineStats
from inferno.server.access.keys import Keys


def view(state: EngineState, generated: int, restarts: int = 0) -> EngineView:
    stats, health = EngineStats(generated_tokens=generated), Health(restarts=restarts)
    return EngineView(state=state, pid=1, stats=stats, health=health)


def fake(*views: EngineView) -> FakeLLM:
    llm = FakeLLM()
    llm.engines = views
    return llm


def test_health_says_which_engine_is_down_and_goes_on(client: Any) -> None:
    llm = fake(view("ok", 3), view("restarting", 5))
    http = client(llm)
    for path in ("/health", "/readyz"):
        response = http.get(path)
        assert response.status_code == 200
        assert response.json() == {
            "status": "degraded",
            "engines": {"fake": {"0": "ok", "1": "restarting"}},
        }
    llm.engines = (view("ok", 3), view("ok", 5))
    assert http.get("/health").json()["status"] == "ok"
    llm.engines, llm.alive = (view("restarting", 3), view("restarting", 5)), False
    response = http.get("/health")
    assert response.status_code == 503 and response.json()["status"] == "restarting"


def test_an_engine_s_metrics_have_its_label_and_are_counted_once(client: Any) -> None:
    text = client(fake(view("ok", 3), view("restarting", 5, restarts=2))).get("/metrics").text
    values = {
        (sample.name, sample.labels.get("engine")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("model_name") == "fake"
    }
    generated = {k[1]: v for k, v in values.items() if k[0] == "inferno_generation_tokens_total"}
    assert generated == {"0": 3, "1": 5}, "their sum is the model's"
    assert [values["inferno_engine_up", i] for i in "01"] == [1, 0]
    assert [values["inferno_engine_restarts_total", i] for i in "01"] == [0, 2]
    assert ("inferno_model_memory_bytes", None) in values


def test_a_lone_engine_has_no_label(client: Any) -> None:
    text = client(FakeLLM()).get("/metrics").text
    assert 'inferno_generation_tokens_total{model_name="fake"} 0.0' in text
    assert "engine=" not in text


def test_as_many_requests_wait_as_all_engines_have_room_for(client: Any) -> None:
    llm = fake(view("ok", 0), view("ok", 0))
    http = client(llm, max_waiting=1)
    [hosted] = http.app.state.models.hosted
    assert hosted.limiter.limit == 2 * llm.plan.max_num_seqs + 1
    assert hosted.served.num_rows == 2 * llm.plan.max_num_seqs


def test_an_operator_sees_which_engine_is_down_and_starts_it(client: Any, tmp_path: Path) -> None:
    llm, file = fake(view("ok", 0), view("restarting", 0)), tmp_path / "keys.toml"
    file.write_text('[keys.operator]\nkey = "k"\nadmin = true')
    llm.refuses = EngineDeadError("the engine does not start: no room", "Wait.")
    http = client(llm, api_keys=Keys((), file))
    http.headers["Authorization"] = "Bearer k"
    [model] = http.get("/v1/models/status").json()["models"]
    assert model["engines"] == {"0": "ok", "1": "restarting"}
    answer = http.post("/v1/models/load", json={"model": "fake"})
    assert answer.status_code == 503 and "no room" in answer.json()["error"]["message"]
    llm.engines = (view("ok", 0), view("ok", 0))
    assert http.post("/v1/models/load", json={"model": "fake"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("headers", "fields", "engine"),
    [
        ({}, {}, None),
        ({"X-data-parallel-rank": "1"}, {}, 1),
        ({}, {"data_parallel_rank": 1}, 1),
        ({}, {"routed_dp_rank": 1}, 1),
        ({"X-data-parallel-rank": "0"}, {"data_parallel_rank": 1}, 0),
    ],
)
def test_a_request_names_the_engine_that_is_to_answer(
    client: Any, path: str, headers: dict[str, str], fields: dict[str, int], engine: int | None
) -> None:
    llm = fake(view("ok", 0), view("ok", 0))
    prompt = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    assert client(llm).post(path, json=prompt | fields, headers=headers).status_code == 200
    assert llm.engines_asked == [engine]


@pytest.mark.parametrize("rank", ["2", "-1", "one", "\u0661", "1" * 40])
def test_an_engine_that_is_not_there_is_a_400_that_says_so(client: Any, rank: str) -> None:
    http = client(fake(view("ok", 0), view("ok", 0)))
    head = {"X-data-parallel-rank": rank.encode()}
    response = http.post("/v1/completions", json={"prompt": "a"}, headers=head)
    assert response.status_code == 400
    assert "rank" in response.json()["error"]["message"]
    for field in ("data_parallel_rank", "routed_dp_rank"):
        said = http.post("/v1/completions", json={"prompt": "a", field: 2}).json()["error"]
        assert "engine 2, and this model has 2 engines" in said["message"] and not said["param"]
