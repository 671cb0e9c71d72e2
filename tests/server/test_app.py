from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from litestar import Litestar, asgi
from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families
from tests.server.server_fakes import FakeLLM
from tests.server.test_schema import JSON

from inferno.errors import EngineDeadError, InfernoError
from inferno.request.requests import EngineStats
from inferno.server import ServerOptions, create_app
from inferno.server.access.keys import Keys
from inferno.server.app import models_of
from inferno.server.generate import pipeline
from inferno.server.options import MAX_WAITING

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def error(response: Any, status: int) -> Any:
    assert response.status_code == status, response.text
    content = response.json()["error"]
    assert set(content) == {"message", "type", "param", "code"}
    return content


# --- errors ---------------------------------------------------------------------------------------


def test_an_unknown_model_is_a_404_that_lists_the_known(client: Any) -> None:
    content = error(
        client(served_names=["a", "b"]).post(CHAT, json={"messages": MESSAGES, "model": "c"}), 404
    )
    assert (content["type"], content["code"]) == ("not_found_error", "model_not_found")
    assert "a, b" in content["message"]


def test_an_unknown_path_is_a_404(client: Any) -> None:
    assert error(client().get("/v2/everything"), 404)["type"] == "not_found_error"


def test_a_wrong_method_is_a_405_that_names_the_right_one(client: Any) -> None:
    response = client().get(CHAT)
    error(response, 405)
    assert "POST" in response.headers["allow"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'],
)
def test_a_broken_body_is_a_400(client: Any, body: bytes) -> None:
    answer = client().post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert error(answer, 400)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "message", "param"),
    [
        ("POST", CHAT, "the body is empty. Send one JSON object.", None),
        ("GET", "/v1/batches?limit=x", "limit: Expected `int`, got `str`. Correct it.", "limit"),
    ],
)
def test_what_a_request_lacks_is_named(
    client: Any, method: str, path: str, message: str, param: str | None
) -> None:
    answer = error(client().request(method, path), 400)
    assert (answer["message"], answer["param"]) == (message, param)


def test_a_body_too_large_is_a_413(client: Any) -> None:
    assert error(client(max_body_bytes=100).post(CHAT, json={"messages": MESSAGES * 50}), 413)


def test_what_breaks_inside_is_a_500_that_tells_nothing(client: Any) -> None:
    response = client(FakeLLM(fails_after=1)).post(CHAT, json={"messages": MESSAGES})
    content = error(response, 500)
    assert content["type"] == "server_error"
    assert "secret" not in response.text
    assert response.headers["x-should-retry"] == "false"


def test_a_dead_engine_is_a_503_worth_another_try(client: Any) -> None:
    for llm in (FakeLLM(alive=False), FakeLLM(dies_after=1)):
        response = client(llm).post(CHAT, json={"messages": MESSAGES})
        assert error(response, 503)["code"] == "engine_restarting"
        assert int(response.headers["retry-after"]) > 0
        assert response.headers["x-should-retry"] == "true"


def test_no_answer_is_a_501_and_every_status_of_ours_has_a_type() -> None:
    from inferno.errors import ERRORS
    from inferno.server.http.errors import body

    for cls in [*ERRORS.values(), EngineDeadError]:
        status, content = body(cls("cause", "remedy"))
        assert status != 501
        assert content["error"]["message"] == "cause. remedy."


def test_a_message_is_never_long() -> None:
    from inferno.server.http.errors import body

    assert len(body(InfernoError("x" * 10**6))[1]["error"]["message"]) < 2100


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer ", "Basic one", "one", "Bearer one two", "Bearer \xff"]
)
def test_without_a_key_nothing_is_answered(client: Any, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    headers["Content-Type"] = b"application/json"
    http = client(api_keys=["one", "two"])
    for method, path in [
        ("GET", "/v1/models"),
        ("POST", CHAT),
        ("GET", "/metrics"),
        ("GET", "/schema/openapi.json"),
    ]:
        response = http.request(method, path, headers=headers, content=b"{")
        content = error(response, 401)
        assert (content["type"], content["code"]) == ("authentication_error", "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["one", "two"])
def test_each_key_opens(client: Any, key: str) -> None:
    http = client(api_keys=["one", "two"])
    assert http.get("/v1/models", headers={"Authorization": f"bearer {key}"}).status_code == 200


def test_health_is_open(client: Any) -> None:
    http = client(api_keys=["one"])
    assert http.get("/health").status_code == http.get("/ping").status_code == 200


def test_other_paths_can_be_opened(client: Any) -> None:
    http = client(api_keys=["one"], open_paths=["/metrics"])
    assert (http.get("/metrics").status_code, http.get("/health").status_code) == (200, 401)


# --- the small routes -----------------------------------------------------------------------------


def test_models_are_listed_by_every_name(client: Any) -> None:
    http = client(served_names=["org/model", "m"])
    listed = http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [m["id"] for m in listed["data"]] == ["org/model", "m"]
    card = http.get("/v1/models/org/model").json()
    assert card.pop("x_inferno") and card == listed["data"][0]
    assert listed["data"][0]["object"] == "model"
    assert listed["data"][0]["max_model_len"] == 4096
    assert listed["data"][0]["interactive_sampling"]["temperature"] == 1.0
    assert error(http.get("/v1/models/other/model"), 404)["code"] == "model_not_found"


def test_a_path_can_be_a_models_name(client: Any) -> None:
    http = client(served_names=["/models/qwen"])
    assert http.get("/v1/models//models/qwen").json()["id"] == "/models/qwen"
    assert http.get("/v1/models/%2Fmodels%2Fqwen").json()["id"] == "/models/qwen"


def test_answers_bear_the_name_they_were_asked_by(client: Any) -> None:
    http = client(served_names=["a", "b"])
    for sent, shown in ((None, "a"), ("a", "a"), ("b", "b")):
        assert http.post(CHAT, json={"messages": MESSAGES, "model": sent}).json()["model"] == shown


def test_health_follows_the_engine(client: Any) -> None:
    llm = FakeLLM()
    http = client(llm)
    assert http.get("/health").status_code == 200
    llm.alive = False
    response = http.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "restarting"})
    assert int(response.headers["retry-after"]) > 0
    llm.stalled = True
    assert http.get("/health").json() == {"status": "stalled"}
    assert 'state="stalled"} 1.0' in http.get("/metrics").text


def test_probes_tell_a_server_that_lives_from_one_that_can_answer(client: Any) -> None:
    llm = FakeLLM()
    http = client(llm)
    probes = ("/livez", "/startupz", "/readyz")
    assert [http.get(path).status_code for path in probes] == [200, 200, 200]
    llm.alive = False
    assert [http.get(path).status_code for path in probes] == [200, 200, 503]


@pytest.mark.parametrize("stalled", [False, True])
def test_the_only_model_is_loaded_again_when_its_engine_does_not_run(
    client: Any, stalled: bool, tmp_path: Path
) -> None:
    llm, file = FakeLLM(alive=False, stalled=stalled), tmp_path / "keys.toml"
    file.write_text('[keys.operator]\nkey = "k"\nadmin = true')
    http = client(llm, api_keys=Keys((), file))
    http.headers["Authorization"] = "Bearer k"
    answer = http.post("/v1/models/load", json={"model": "fake"})
    assert (answer.status_code, answer.json()["status"]) == (200, "loaded")
    assert http.get("/readyz").status_code == 200
    llm.alive, llm.refuses = False, EngineDeadError("the engine does not start: no room", "Wait.")
    answer = http.post("/v1/models/load", json={"model": "fake"})
    assert answer.status_code == 503 and "no room" in answer.json()["error"]["message"]


def test_a_prober_leaves_a_server_alone_whose_engine_comes_back(client: Any) -> None:
    """What Kubernetes does with the manifest's probes: it kills for liveness only."""
    llm = FakeLLM()
    http = client(llm)
    killed = routed = 0
    for alive in (True, False, False, False, True):
        llm.alive = alive
        killed += http.get("/livez").status_code != 200
        routed += http.get("/readyz").status_code == 200
    assert (killed, routed) == (0, 2)


def test_the_version_is_told(client: Any) -> None:
    import inferno

    assert client().get("/version").json() == {"version": inferno.__version__}


def test_tokenize_and_detokenize_speak_both_dialects(client: Any) -> None:
    http = client()
    vllm = http.post(
        "/tokenize", json={"prompt": "hi", "model": "fake", "return_token_strs": True}
    ).json()
    assert vllm == {
        "tokens": [104, 105],
        "count": 2,
        "max_model_len": 4096,
        "token_strs": ["h", "i"],
    }
    llama = http.post("/tokenize", json={"content": "hi", "with_pieces": True}).json()
    assert llama["tokens"] == [{"id": 104, "piece": "h"}, {"id": 105, "piece": "i"}]
    chat = http.post("/tokenize", json={"messages": MESSAGES}).json()
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat["count"] == len(text)
    assert http.post("/detokenize", json={"tokens": chat["tokens"]}).json() == {
        "prompt": text,
        "content": text,
    }


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "content": "b"}, {"prompt": 1}])
def test_tokenize_wants_one_text(client: Any, body: Any) -> None:
    error(client().post("/tokenize", json=body), 400)


def test_unknown_fields_are_named_by_every_endpoint_or_refused(client: Any) -> None:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": MESSAGES},
        "/v1/completions": {"prompt": "x"},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }
    http, strict = client(), client(strict_params=True)
    for path, body in bodies.items():
        assert http.post(path, json={**body, "wish": 1}).json()["x_inferno"] == {
            "ignored": ["wish"]
        }
        assert "x_inferno" not in http.post(path, json=body).json()
        assert error(strict.post(path, json={**body, "wish": 1}), 400)["param"] == "wish"
        assert strict.post(path, json=body).status_code == 200


# --- headers, metrics, schema ---------------------------------------------------------------------


def test_a_request_id_comes_back(client: Any) -> None:
    http = client()
    assert http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    body = {"messages": MESSAGES, "request_id": "from-body"}
    assert http.post(CHAT, json=body).headers["x-request-id"] == "from-body"
    assert http.post(CHAT, json=body, headers={"x-request-id": "h"}).headers["x-request-id"] == "h"


@pytest.mark.parametrize("sent", [None, "x" * 129, "with space", "\xe9"])
def test_a_request_without_a_usable_id_gets_one(client: Any, sent: str | None) -> None:
    headers = {} if sent is None else {"x-request-id": sent.encode("latin-1")}
    for path in ("/health", "/nowhere"):
        got = client().get(path, headers=headers).headers["x-request-id"]
        assert len(got) == 32


LIMITS = ("1.0", "8.0", "256.0", "512.0", "16384.0", "+Inf")


def test_metrics_have_vllms_names(client: Any) -> None:
    stats = EngineStats(
        num_running=3, num_waiting=2, kv_usage=0.5, prefix_queries=10, prefix_hits=4, preemptions=1
    )
    for size in (1, 7, 300, 300, 99_999):
        stats.count_step(size)
    http = client(FakeLLM(stats=stats))
    http.post(CHAT, json={"messages": MESSAGES, "n": 2})
    http.post(CHAT, json={})
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.text))
    samples = {
        (s.name, *(v for k, v in s.labels.items() if k != "model_name")): s.value
        for f in families
        for s in f.samples
    }
    models = {s.labels.get("model_name", "fake") for f in families for s in f.samples}
    assert models == {"fake"}
    assert samples["inferno_num_requests_running",] == 3
    assert samples["inferno_num_requests_waiting",] == 2
    assert samples["inferno_kv_cache_usage_perc",] == 0.5
    assert samples["inferno_prefix_cache_queries_total",] == 10
    assert samples["inferno_prefix_cache_hits_total",] == 4
    assert samples["inferno_num_preemptions_total",] == 1
    steps = {at: samples["inferno_iteration_tokens_total_bucket", at] for at in LIMITS}
    assert steps == {"1.0": 1, "8.0": 2, "256.0": 2, "512.0": 4, "16384.0": 4, "+Inf": 5}
    assert samples["inferno_iteration_tokens_total_sum",] == 1 + 7 + 600 + 99_999
    assert samples["inferno_request_success_total", "stop"] == 2
    assert samples["inferno_time_to_first_token_seconds_count",] == 2
    assert samples["inferno_e2e_request_latency_seconds_count",] == 2
    assert samples["inferno_inter_token_latency_seconds_count",] == 2 * (11 - 3)
    assert samples["inferno_request_time_per_output_token_seconds_count",] == 2
    assert samples["inferno_request_decode_time_seconds_count",] == 2
    assert samples["inferno_request_queue_time_seconds_count",] == 2
    assert samples["inferno_request_prefill_time_seconds_count",] == 2
    assert samples["inferno_request_generation_tokens_sum",] == 2 * 11
    assert samples["inferno_request_prompt_tokens_count",] == 1
    assert samples["inferno_http_requests_total", "200"] == 1
    assert samples["inferno_http_requests_total", "400"] == 1
    for name in (
        "prompt_tokens_total",
        "prompt_tokens_cached_total",
        "generation_tokens_total",
        "engine_up",
    ):
        assert (f"inferno_{name}",) in samples


def test_the_openapi_schema_describes_the_requests(client: Any) -> None:
    schema = client().get("/schema/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    chat = schema["paths"][CHAT]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/ChatRequest"
    )
    request = schema["components"]["schemas"]["ChatRequest"]
    assert request["required"] == ["messages"]
    assert {"temperature", "stream", "tools", "max_completion_tokens"} <= set(request["properties"])
    assert chat["responses"]["400"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/ErrorBody"
    )
    references = set(_references(schema))
    assert references <= {
        f"#/components/schemas/{name}" for name in schema["components"]["schemas"]
    }


def _references(node: Any) -> Any:
    if isinstance(node, dict):
        yield from [node["$ref"]] if "$ref" in node else []
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


# --- the app as a value ---------------------------------------------------------------------------


def test_the_app_starts_and_closes_a_model_that_it_owns() -> None:
    owned, lent = FakeLLM(), FakeLLM()
    with TestClient(create_app(owned)), TestClient(create_app(lent, ServerOptions(own_llm=False))):  # type: ignore[arg-type]
        assert (owned.started, lent.started) == (1, 0)
    assert (owned.started, lent.started) == (0, 0)


def test_two_apps_in_a_process_know_nothing_of_each_other(client: Any) -> None:
    one, two = (
        client(FakeLLM(reply="one"), served_names=["a"]),
        client(FakeLLM(reply="two"), served_names=["b"]),
    )
    assert (
        one.post(CHAT, json={"messages": MESSAGES}).json()["choices"][0]["message"]["content"]
        == "one"
    )
    assert (
        two.post(CHAT, json={"messages": MESSAGES}).json()["choices"][0]["message"]["content"]
        == "two"
    )
    assert 'finished_reason="stop",model_name="a"} 1.0' in one.get("/metrics").text


def test_the_app_can_be_mounted_in_another() -> None:
    inner = create_app(FakeLLM(), ServerOptions(api_keys=["k"]))  # type: ignore[arg-type]

    @asgi("/llm", is_mount=True, copy_scope=True)
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    with TestClient(Litestar([mounted], logging_config=None)) as http:
        assert http.get("/llm/health").status_code == 200
        assert http.get("/llm/v1/models").status_code == 401
        headers = {"Authorization": "Bearer k"}
        assert (
            http.post(f"/llm{CHAT}", json={"messages": MESSAGES}, headers=headers).status_code
            == 200
        )


def test_a_full_queue_is_a_429_worth_another_try(client: Any) -> None:
    http = client(max_waiting=2)  # and four run
    limiter = models_of(http.app).hosted[0].limiter
    limiter.in_flight = 5
    assert http.post(CHAT, json={"messages": MESSAGES}).status_code == 200
    response = http.post(CHAT, json={"messages": MESSAGES, "n": 2})
    assert error(response, 429)["type"] == "rate_limit_error"
    assert int(response.headers["retry-after"]) > 0
    assert limiter.in_flight == 5


def test_an_idle_server_admits_more_outputs_than_its_limit(client: Any) -> None:
    """Otherwise such a request could never be answered."""
    http = client(max_waiting=0)  # and four run
    assert http.post(CHAT, json={"messages": MESSAGES, "n": 6}).status_code == 200
    models_of(http.app).hosted[0].limiter.in_flight = 1
    error(http.post(CHAT, json={"messages": MESSAGES, "n": 6}), 429)


def test_a_stopping_server_refuses_new_requests(client: Any) -> None:
    http = client()
    models_of(http.app).hosted[0].limiter.draining = True
    assert (
        error(http.post(CHAT, json={"messages": MESSAGES}), 503)["code"] == "server_shutting_down"
    )
    assert http.get("/health").json() == {"status": "shutting down"}


def test_the_gate_is_left_whatever_happens(client: Any) -> None:
    http = client(FakeLLM(fails_after=1), max_waiting=0)
    for body in (
        {"messages": MESSAGES},
        {"messages": MESSAGES, "stream": True},
        {"messages": MESSAGES, "n": 0},
    ):
        http.post(CHAT, json=body)
        assert models_of(http.app).hosted[0].limiter.in_flight == 0
        assert not models_of(http.app).hosted[0].limiter.running


def test_the_gate_is_left_when_a_response_cannot_be_begun(client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(pipeline.Stream, "to_asgi_response", lambda *args, **kwargs: 1 // 0)
    http = client(FakeLLM())
    error(http.post(CHAT, json={"messages": MESSAGES, "stream": True}), 500)
    assert models_of(http.app).hosted[0].limiter.in_flight == 0
    assert not models_of(http.app).hosted[0].limiter.running


def test_a_response_template_that_cannot_be_read_costs_the_tools_only(
    client: Any, caplog: Any
) -> None:
    http = client(FakeLLM(response_template={"version": 99, "fields": {}}))
    assert "response_template" in caplog.text
    assert http.post(CHAT, json={"messages": MESSAGES}).status_code == 200
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert (
        error(http.post(CHAT, json={"messages": MESSAGES, "tools": tools}), 400)["param"] == "tools"
    )


@pytest.fixture(scope="module")
def fuzzed() -> Any:
    with TestClient(create_app(FakeLLM()), raise_server_exceptions=False) as http:  # type: ignore[arg-type]
        yield http


VALUES = JSON | st.sampled_from(
    ["auto", "none", {"type": "text"}, [], {}, 2**62, -(2**62), 1e308, 0, 1, True, "é\x00"]
)
CHAT_FIELDS = (
    "temperature top_p top_k n stop seed logit_bias max_tokens logprobs top_logprobs tools "
    "tool_choice stream priority "
    "stream_options chat_template_kwargs reasoning_effort cache_salt request_id "
    "return_token_ids prompt_logprobs "
    "continue_final_message response_format"
)
TURNS = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": JSON}), max_size=2)
CHAT_BODIES = st.fixed_dictionaries(
    {"messages": st.just(MESSAGES) | TURNS}, optional=dict.fromkeys(CHAT_FIELDS.split(), VALUES)
)
COMPLETION_FIELDS = "n echo logprobs max_tokens best_of suffix stream stop seed"
COMPLETION_BODIES = st.fixed_dictionaries(
    {"prompt": JSON | st.just("x") | st.lists(st.integers(-1, 300), max_size=3)},
    optional=dict.fromkeys(COMPLETION_FIELDS.split(), VALUES),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.tuples(st.just(CHAT), CHAT_BODIES) | st.tuples(st.just("/v1/completions"), COMPLETION_BODIES)
)
def test_no_body_is_a_500(fuzzed: Any, sent: tuple[str, dict[str, Any]]) -> None:
    path, body = sent
    response = fuzzed.post(path, json=body)
    assert response.status_code in (200, 400), response.text
    assert response.status_code == 200 or len(response.text) < 3000
    assert "server_error" not in response.text


def test_by_default_the_queue_is_limited(client: Any) -> None:
    http = client()
    models_of(http.app).hosted[0].limiter.in_flight = 4 + MAX_WAITING
    assert error(http.post(CHAT, json={"messages": MESSAGES}), 429)["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_timeout_must_be_positive(client: Any, seconds: float) -> None:
    answer = client().post(CHAT, json={"messages": MESSAGES, "timeout": seconds})
    assert error(answer, 400)["param"] == "timeout"


@pytest.mark.parametrize(
    "tokens", [[-1], [257], [2**40]], ids=["negative", "behind the vocabulary", "huge"]
)
def test_impossible_ids_are_a_400(client: Any, tokens: list[int]) -> None:
    answer = client().post("/detokenize", json={"tokens": tokens})
    assert error(answer, 400)["param"] == "tokens"
