"""A served model sleeps, wakes up, and has its weights replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from litestar.testing import TestClient
from safetensors.torch import load_file, save_file
from tests.peft_adapters import matrices, pairs, write_merged
from tests.server.conftest import Live, read_event, wait_until
from tests.server.model_fakes import FakeModel
from tests.server.server_fakes import FakeLLM

from inferno.llm import AsyncLLM
from inferno.plan import resolve
from inferno.testing import alike

PROMPT = [5 + 7 * i % 90 for i in range(40)]
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Path(resolve("demo").path)
    folder = tmp_path_factory.mktemp("models") / "other"
    return write_merged(model, folder, pairs(matrices(model), 1, 8))


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 4}
    options |= {"memory": "1GiB"}
    live = Live(AsyncLLM("demo", **options))  # type: ignore[arg-type]
    yield httpx.Client(base_url=live.url, timeout=60)
    live.stop()


def answer(server: httpx.Client, **changes: Any) -> Any:
    return server.post("/v1/completions", json={**BODY, **changes})


def tokens(server: httpx.Client) -> list[int]:
    response = answer(server, return_token_ids=True)
    assert response.status_code == 200, response.text
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


@pytest.mark.parametrize("how", ["body", "query"])
def test_a_model_that_sleeps_refuses_requests_until_it_wakes_up(
    server: httpx.Client, how: str
) -> None:
    expected = tokens(server)
    given: dict[str, Any] = {"level": 2, "mode": "abort"}
    slept = (
        server.post("/v1/sleep", json=given)
        if how == "body"
        else server.post("/sleep", params=given)  # as vLLM's clients do
    )
    assert slept.status_code == 200 and slept.json() == {"is_sleeping": True}, slept.text
    assert server.get("/is_sleeping").json() == {"is_sleeping": True}
    refused = answer(server)
    assert refused.status_code == 503 and refused.headers["x-should-retry"] == "false"
    error = refused.json()["error"]
    assert error["code"] == "model_asleep" and "/v1/wake_up" in error["message"]
    assert server.post("/tokenize", json={"prompt": "hi"}).status_code == 200
    assert server.get("/v1/models").json()["data"][0]["status"] == "asleep"
    assert server.get("/health").status_code == 200
    woken = server.post("/wake_up", params={"tags": "weights"})
    assert woken.json() == {"is_sleeping": True}
    woken = server.post("/wake_up", params={"tags": ["weights", "kv_cache"]})
    assert woken.json() == {"is_sleeping": False}
    assert server.get("/v1/is_sleeping").json() == {"is_sleeping": False}
    assert tokens(server) == expected


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/sleep", {"level": 3}, "level"),
        ("/v1/sleep", {"level": "1"}, "level"),
        ("/v1/sleep", {"mode": "x"}, "mode"),
        ("/v1/wake_up", {"tags": ["x"]}, "tags"),
        ("/v1/update_weights", {"weights": "/nowhere"}, "weights"),
        ("/v1/update_weights", {}, "weights"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_it(
    server: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    refused = server.post(path, json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param
    assert server.get("/is_sleeping").json() == {"is_sleeping": False}
    assert server.post("/sleep", params={"level": "x"}).status_code == 400


def test_a_loop_of_generating_and_updating_sees_the_version_and_the_answers_change(
    server: httpx.Client, other: Path, tmp_path: Path
) -> None:
    """Token ids in, token ids and their log-probabilities out, as trainers want them."""
    model = Path(resolve("demo").path)
    rows = []
    for step in range(3):
        response = answer(server, return_token_ids=True, logprobs=0).json()
        [choice] = response["choices"]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        assert choice["prompt_token_ids"] == PROMPT
        version = {0: "0", 1: "step-1", 2: "2"}[step]
        assert response["weight_version"] == version
        assert server.get("/v1/models").json()["data"][0]["weight_version"] == version
        again = answer(
            server, prompt=[*PROMPT, *ids], max_tokens=1, prompt_logprobs=0, temperature=1
        ).json()
        scored = again["choices"][0]["prompt_logprobs"][len(PROMPT) :]
        right = [each[str(i)]["logprob"] for each, i in zip(scored, ids, strict=True)]
        assert torch.allclose(torch.tensor(logprobs), torch.tensor(right), atol=1e-4)
        rows.append(ids)
        source = other if step == 0 else model
        file = tmp_path / "weights.safetensors"  # written over each time, as trainers do
        save_file(load_file(source / "model.safetensors"), file)
        given = {"weights": str(file)} | ({"weight_version": "step-1"} if step == 0 else {})
        updated = server.post("/v1/update_weights", json=given)
        assert updated.status_code == 200, updated.text
        assert updated.json()["weight_version"] == {0: "step-1", 1: "2", 2: "3"}[step]
    assert rows[0] == rows[2] != rows[1]


def test_trainers_are_answered_as_by_vllm(server: httpx.Client) -> None:
    """What TRL's client sends to generate, and how it reads the answer."""
    prompts, n = [PROMPT, PROMPT[:7]], 2
    sampling = {"n": n, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    sampling |= {"min_p": 0.0, "max_tokens": 5, "seed": 1}
    as_ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    for count in (0, 3):
        body = {"prompt": prompts, "logprobs": count, "model": "demo", **as_ids, **sampling}
        answered = server.post("/v1/completions", json=body)
        assert answered.status_code == 200, answered.text
        choices = answered.json()["choices"]
        assert [choice["prompt_token_ids"] for choice in choices[::n]] == prompts
        for choice in choices:
            scored = choice["logprobs"]
            positions = zip(
                scored["tokens"], scored["token_logprobs"], scored["top_logprobs"], strict=True
            )
            for (token, logprob, top), drawn in zip(positions, choice["token_ids"], strict=True):
                assert token == f"token_id:{drawn}" and top[token] == logprob
                assert max(count, 1) <= len(top) <= count + 1
                assert all(name.startswith("token_id:") for name in top)
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 0,
    }
    answered = server.post("/v1/chat/completions", json={**request, **as_ids, **sampling})
    for choice in answered.json()["choices"]:
        tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert tokens == [f"token_id:{i}" for i in choice["token_ids"]]


def test_a_stream_ends_with_the_version(server: httpx.Client) -> None:
    response = answer(server, stream=True)
    events = [line for line in response.text.split("\n\n") if "finish_reason" in line]
    version = server.get("/v1/models").json()["data"][0]["weight_version"]
    assert f'"weight_version":"{version}"' in events[-1]
    assert "weight_version" not in "".join(events[:-1])


def test_requests_end_before_an_update_or_go_on_after_it(server: httpx.Client, other: Path) -> None:
    body = {**BODY, "max_tokens": 400, "stream": True, "return_token_ids": True}

    def ask(begun: threading.Semaphore, answers: list[tuple[int, str]]) -> None:
        count, version = 0, ""
        with server.stream("POST", "/v1/completions", json=body) as stream:
            for event in map(read_event, stream.iter_lines()):
                if isinstance(event, dict):
                    begun.release()
                    count += len(event["choices"][0]["token_ids"])
                    version = event.get("weight_version", version)
        answers.append((count, version))

    files = [Path(resolve("demo").path), other]
    for mode in ("wait", "keep"):
        before = server.get("/v1/models").json()["data"][0]["weight_version"]
        answers: list[tuple[int, str]] = []
        begun = threading.Semaphore(0)
        threads = [threading.Thread(target=ask, args=(begun, answers)) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.acquire(timeout=20)
        files.reverse()
        given = {"weights": str(files[0] / "model.safetensors"), "mode": mode}
        updated = server.post("/v1/update_weights", json=given)
        assert updated.status_code == 200, updated.text
        for thread in threads:
            thread.join()
        version = before if mode == "wait" else updated.json()["weight_version"]
        assert (400, version) in answers and [count for count, _ in answers] == [400] * 3


def test_of_several_models_one_sleeps(live: Any) -> None:
    models = [FakeModel("a", preload=True), FakeModel("b", preload=True)]
    server = live([model.spec() for model in models])
    http = httpx.Client(base_url=server.url, timeout=20)
    wait_until(lambda: all(model.running for model in models))
    for name in "ab":
        assert http.post("/v1/models/load", json={"model": name}).status_code == 200
    assert http.post("/v1/sleep", json={"model": "b"}).json() == {"is_sleeping": True}
    assert http.get("/v1/is_sleeping?model=a").json() == {"is_sleeping": False}
    body = {"prompt": "hi", "max_tokens": 2}
    assert http.post("/v1/completions", json={"model": "a", **body}).status_code == 200
    assert http.post("/v1/completions", json={"model": "b", **body}).status_code == 503
    assert http.post("/v1/sleep", json={"model": "c"}).status_code == 404


def test_only_admins_may(client: Any) -> None:
    http: TestClient[Any] = client(FakeLLM())
    paths = ("/v1/sleep", "/v1/wake_up", "/v1/update_weights")
    forwarded = {"x-forwarded-for": "192.0.2.1"}
    for path in paths:
        assert http.post(path, json={"weights": "x"}, headers=forwarded).status_code == 403
    assert http.get("/v1/is_sleeping", headers=forwarded).status_code == 403


@alike
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"model": "demo", "input": "hi", "max_output_tokens": 16}),
        (
            "/v1/messages",
            {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]},
        ),
        ("/api/generate", {"model": "demo", "prompt": "hi", "options": {"num_predict": 2}}),
        ("/completion", {"prompt": "hi", "n_predict": 2}),
    ],
)
def test_every_api_says_the_version(server: httpx.Client, path: str, body: dict[str, Any]) -> None:
    version = server.get("/v1/models").json()["data"][0]["weight_version"]
    for stream in (False, True):
        answer = server.post(path, json={**body, "stream": stream})
        if answer.status_code == 404:
            pytest.skip("its distribution is not installed")
        assert answer.status_code == 200, answer.text
        assert f'"weight_version":"{version}"' in answer.text
